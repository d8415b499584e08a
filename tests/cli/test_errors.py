"""Every wrong call ends in one line that names the argument, and exit code 2."""

import json
from pathlib import Path

import pytest

from mrp_hf.cli import main


def run_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def our_line(error: str) -> str:
    """The line that the command itself wrote last; progress bars and notices of libraries may stand before it."""
    lines = error.strip().splitlines()
    assert lines[-1].startswith("mrp-hf: ")
    return lines[-1]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["-K", "0", "--mode", "direct"], "mrp_num_lookahead_steps"),
        (["--threshold", "1.5", "--mode", "remask"], "confidence_threshold"),
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--max-new-tokens", "100000"], "max_new_tokens"),
        (["--sample", "--temperature", "-1"], "temperature"),
        (["--sample", "--seed", "-3"], "seed"),
    ],
)
def test_generate_names_the_field(
    options: list[str], name: str, demo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run_wrong(["generate", str(demo_folder), "tom has 34 pens.", *options], capsys)
    assert name in our_line(error)


@pytest.mark.parametrize("options", [["--mode", "fast"], ["--rule", "best"], ["--drafter", "oracle"]])
def test_unknown_choices_are_listed(options: list[str], demo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = run_wrong(["generate", str(demo_folder), "tom", *options], capsys)
    assert options[0] in error
    assert {"--mode": "speculative", "--rule": "sequential", "--drafter": "backbone"}[options[0]] in error


def test_options_of_a_backbone_for_a_checkpoint(demo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = our_line(run_wrong(["generate", str(demo_folder), "tom", "--attention", "bidirectional"], capsys))
    assert "attention_pattern" in line
    assert "leave them out" in line


def test_a_prompt_longer_than_the_model(demo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = our_line(run_wrong(["generate", str(demo_folder), "tom has 34 pens. " * 200], capsys))
    assert "512" in line


def test_a_checkpoint_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(tmp_path / "nothing") in our_line(run_wrong(["generate", str(tmp_path / "nothing"), "tom"], capsys))


def test_a_head_that_does_not_fit_its_backbone(
    demo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in demo_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_mrp_layers"] = 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = our_line(run_wrong(["generate", str(tmp_path), "tom"], capsys))
    assert str(tmp_path) in line
    assert "config.json" in line


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["-K", "0"], "num_lookahead_steps"),
        (["--reveal-max", "0"], "reveal_max"),
        (["--layers", "-1"], "num_mrp_layers"),
        (["--layers", "0"], "num_mrp_layers"),
        (["--block-length", "0"], "block_length"),
        (["--mask-token-id", "1000"], "mask_token_id"),
        (["--prediction", "sum"], "mrp_prediction"),
        (["--resume"], "resume_from_checkpoint"),
    ],
)
def test_train_names_the_argument(
    options: list[str], name: str, backbone_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"prompt": "tom has 34 pens.", "answer": "#### 34"}) + "\n")
    arguments = ["train", str(backbone_folder), str(data), "--output", str(tmp_path / "out")]
    if "--mask-token-id" not in options:
        arguments += ["--mask-token-id", "2"]
    if "--block-length" not in options:
        arguments += ["--block-length", "16"]
    assert name in our_line(run_wrong([*arguments, *options], capsys))


def test_a_backbone_path_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", str(tmp_path / "nothing"), "demo", "--output", str(tmp_path / "out")]
    assert str(tmp_path / "nothing") in our_line(run_wrong(arguments, capsys))


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("data.txt", "", "neither .json nor .jsonl"),
        ("data.jsonl", "", "no records"),
        ("data.jsonl", '{"prompt": "a"}', "line 1: a record needs"),
        ("data.jsonl", '{"prompt": "a", "answer": "b"}\n{', "line 2 is not JSON"),
        ("data.json", '{"prompt": "a", "answer": "b"}', "holds no list"),
        ("data.json", '[{"messages": [{"role": "user"}, {"role": "assistant"}]}]', "`role` and `content`"),
        (
            "data.json",
            '[{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}]',
            "the last message must be the assistant's",
        ),
    ],
)
def test_data_of_another_form(
    name: str, content: str, part: str, backbone_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / name
    data.write_text(content)
    arguments = ["train", str(backbone_folder), str(data), "--output", str(tmp_path / "out")]
    line = our_line(run_wrong([*arguments, "--mask-token-id", "2", "--block-length", "16"], capsys))
    assert part in line
    assert str(data) in line


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError)):
        main(["--debug", "generate", str(tmp_path / "nothing"), "tom"])
