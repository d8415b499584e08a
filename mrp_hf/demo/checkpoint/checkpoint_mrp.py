"""What a checkpoint folder holds besides weights: the Python files that load it, and how everything gets there.

The files of `modeling/` and `generation/` lie side by side in a checkpoint, because transformers copies remote code
flat and follows only single-dot relative imports. Everything here works from the installed package and from such a flat
folder alike, so that a checkpoint loaded by `trust_remote_code` can be saved again.
"""

import inspect
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .generation_mrp import MRPGenerationMixin
from .configuration_mrp import CODE_VERSION

AUTO_MAP = {
    "AutoConfig": "configuration_mrp.MRPConfig",
    "AutoModel": "modeling_mrp.MRPForDiffusionLM",
    "AutoModelForCausalLM": "modeling_mrp.MRPForDiffusionLM",
}
STAGE_PREFIX = ".saving-"
# Weights that a save replaces: one that it did not write would be loaded instead of, or mixed with, the new ones.
WEIGHTS = re.compile(r"model.*\.safetensors(\.index\.json)?")


def code_files() -> dict[str, str]:
    """Name and text of each Python file that travels with a checkpoint, imports between them flattened."""
    folders = {Path(__file__).parent, Path(inspect.getfile(MRPGenerationMixin)).parent}
    files = sorted(file for folder in folders for file in folder.glob("*_mrp.py"))
    return {file.name: flatten_imports(file.read_text(encoding="utf-8")) for file in files}


def flatten_imports(source: str) -> str:
    """``from ..generation.x_mrp import y`` becomes ``from .x_mrp import y``."""
    return re.sub(r"^(\s*from )\.\.generation(\.\w+_mrp import )", r"\1\2", source, flags=re.MULTILINE)


def write_code(folder: str | os.PathLike[str]) -> None:
    """Write the travelling Python files into `folder`, in place of older ones."""
    with staged(folder) as stage:
        for name, source in code_files().items():
            (stage / name).write_text(source, encoding="utf-8")


def refresh_code(folder: str | os.PathLike[str]) -> None:
    """Bring a saved checkpoint's Python files, and the version that its config records, up to this code.

    Raises:
        ValueError: if `folder` holds no MRP checkpoint.
    """
    config_file = Path(folder) / "config.json"
    fields = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
    if fields.get("model_type") != "mrp":
        raise ValueError(f"`folder` is {os.fspath(folder)!r}, which holds no MRP checkpoint: check the path.")
    fields |= {"auto_map": AUTO_MAP, "mrp_code_version": CODE_VERSION}
    write_code(folder)
    with staged(folder) as stage:
        (stage / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextmanager
def staged(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty folder inside `folder`; what is written there moves up, file by file, when all of it is complete.

    A process that dies while writing leaves the files of the last complete save; only the few renames at the end are
    not one step. Weights of before go when the new ones are in place, and the config moves last.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for left_over in target.glob(f"{STAGE_PREFIX}*"):  # of a process that died
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(dir=target, prefix=STAGE_PREFIX) as name:
        stage = Path(name)
        yield stage
        written = {file.name: file for file in stage.iterdir()}
        config = written.pop("config.json", None)
        for name, file in written.items():
            os.replace(file, target / name)
        if any(WEIGHTS.fullmatch(name) for name in written):
            for old in target.iterdir():
                if WEIGHTS.fullmatch(old.name) and old.name not in written:
                    old.unlink()
        if config is not None:
            os.replace(config, target / config.name)
