"""What gets installed, from a wheel and from an editable install, seen from outside the repository."""

import itertools
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = ("mrp_hf", "generation", "modeling", "pyproject.toml", "README.md", "LICENSE")

PROBE = """
import importlib.util, json
import mrp_hf.generation.generation_mrp, mrp_hf.modeling.modeling_mrp, mrp_hf.training, mrp_hf.demo.task
print(json.dumps({
    "files": [module.__file__ for module in (mrp_hf, mrp_hf.generation.generation_mrp, mrp_hf.modeling.modeling_mrp)],
    "names": mrp_hf.__all__,
    "top": [name for name in ("modeling", "generation") if importlib.util.find_spec(name)],
}))
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    # PYTHONPATH of the test run must not decide what an environment finds.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that building leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that sees this one's packages, but not the project as it is installed here."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A folder named in a .pth file is searched, but the .pth files in it (an editable install's, say) are not read.
    (packages / "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str | Path, cwd: Path) -> None:
    run(python, "-m", "pip", *arguments, "--quiet", "--no-deps", "--no-build-isolation", cwd=cwd)


@pytest.fixture(scope="module")
def wheel(sources: Path, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(python, "wheel", "--wheel-dir", folder, sources, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_one_package_with_everything_in_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"mrp_hf"}
    assert "mrp_hf/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for source, package in (("generation", "mrp_hf/generation"), ("modeling", "mrp_hf/modeling"), ("mrp_hf", "mrp_hf")):
        for path in (ROOT / source).rglob("*.py"):
            assert f"{package}/{path.relative_to(ROOT / source).as_posix()}" in names
    for path in (ROOT / "mrp_hf" / "demo" / "checkpoint").glob("*"):
        assert f"mrp_hf/demo/checkpoint/{path.name}" in names


def test_the_wheel_works_outside_the_repository(wheel: Path, python: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip(python, "install", "--target", target, wheel, cwd=tmp_path)
    seen = json.loads(run(python, "-c", PROBE, cwd=tmp_path, PYTHONPATH=str(target)))
    assert all(Path(file).is_relative_to(target) for file in seen["files"])
    assert seen["top"] == []
    assert (target / "bin" / "mrp-hf").exists()


def test_the_editable_install_works_outside_the_repository(sources: Path, python: Path, tmp_path: Path) -> None:
    pip(python, "install", "--editable", sources, cwd=tmp_path)
    try:
        seen = json.loads(run(python, "-c", PROBE, cwd=tmp_path))
        assert [Path(file) for file in seen["files"]] == [
            sources / "mrp_hf" / "__init__.py",
            sources / "generation" / "generation_mrp.py",
            sources / "modeling" / "modeling_mrp.py",
        ]
        assert seen["top"] == []
        # From inside the repository `mrp_hf` is found in the working directory first; the mapping must still hold.
        run(python, "-c", "import mrp_hf.generation.generation_mrp, mrp_hf.modeling.modeling_mrp", cwd=sources)
    finally:
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "mrp-hf", cwd=tmp_path)


def test_every_package_folder_is_listed() -> None:
    folders = {path.parent for path in (ROOT / "mrp_hf").rglob("__init__.py")}
    found = {"mrp_hf.generation", "mrp_hf.modeling"} | {".".join(f.relative_to(ROOT).parts) for f in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_floors_are_the_versions_that_are_pinned_and_tested() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    floors = dict(re.match(r"([\w-]+)>=([\w.]+)", item).groups() for item in wanted if not item.startswith("mrp-hf"))
    assert floors == pins


def test_no_registry_is_named_in_the_project_files() -> None:
    for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run"):
        text = (ROOT / name).read_text()
        assert "http" not in text
        assert "index-url" not in text
