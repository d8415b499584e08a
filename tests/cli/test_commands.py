"""The commands as a user calls them, on tiny models."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mrp_hf.cli import main
from mrp_hf.cli.data import read_records
from mrp_hf.demo.backbone import encode
from mrp_hf.demo.task import problems
from mrp_hf.demo.tokenizer import build_tokenizer
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training.conversations import encode_conversation

PROMPT = "tom has 34 pens. then gets 12. how many pens now?"


def run(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0


@pytest.mark.parametrize("command", [[], ["demo"], ["train"], ["generate"], ["build-demo"], ["convert"], ["refresh"]])
def test_help_says_what_a_command_does(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run([*command, "--help"])
    shown = capsys.readouterr().out
    assert "Usage" in shown
    assert all(name in shown for name in ("demo", "train", "generate", "build-demo", "convert", "refresh")) or command


def test_the_command_line_loads_nothing_until_a_command_runs(tmp_path: Path) -> None:
    code = "import sys, mrp_hf; before = set(sys.modules); import mrp_hf.cli; print(*set(sys.modules) - before)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    packages = {name.split(".")[0] for name in shown.stdout.split()}
    assert not packages & {"datasets", "evaluate", "matplotlib", "accelerate", "sklearn"}
    parts = ("app", "build", "convert", "demo", "generate", "options", "refresh", "train")
    allowed = {"mrp_hf.cli", *(f"mrp_hf.cli.{part}" for part in parts)}
    assert {name for name in shown.stdout.split() if name.startswith("mrp_hf.")} <= allowed


def test_demo_writes_table_json_and_picture(
    demo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report"
    run(["demo", "--problems", "2", "--alone", "0", "--checkpoint", str(demo_folder), "--output", str(output)])
    shown = capsys.readouterr().out
    assert "2 held-out problems" in shown
    report = json.loads((output / "report.json").read_text())
    assert report["problems"] == 2
    assert all(row["identical"] == 2 for row in report["settings"] if row["group"] == "speculative")
    assert all(row["speed_alone"] is None for row in report["settings"])
    assert (output / "report.png").read_bytes().startswith(b"\x89PNG")


def test_speculative_generation_is_plain_generation(demo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for mode in ("plain", "speculative"):
        run(["generate", str(demo_folder), PROMPT, "--mode", mode, "--stats", "--sample", "--seed", "3"])
        captured = capsys.readouterr()
        shown.append(captured.out)
        assert "tokens per forward" in captured.err
    assert shown[0] == shown[1] != ""


def test_a_prompt_from_standard_input_streamed(
    demo_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(["generate", str(demo_folder), PROMPT])
    given = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
    run(["generate", str(demo_folder), "--stream"])
    assert capsys.readouterr().out.split() == given.split()


def test_train_saves_a_checkpoint_that_generates(
    backbone_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    records = [{"prompt": p.question, "answer": p.answer} for p in problems("train", 8)]
    data.write_text("\n".join(map(json.dumps, records)) + "\n")
    output = tmp_path / "out"
    common = ["train", str(backbone_folder), str(data), "--output", str(output), "--eval-data", str(data)]
    common += ["--mask-token-id", "2", "--block-length", "16", "--layers", "1", "-K", "2", "--batch-size", "2"]
    run([*common, "--steps", "2", "--save-steps", "2"])
    assert "residual_explained_2" in capsys.readouterr().out
    first = MRPForDiffusionLM.from_pretrained(output)
    assert first.config.mrp_head_trained
    run([*common, "--steps", "4", "--save-steps", "2", "--resume"])
    second = MRPForDiffusionLM.from_pretrained(output)
    assert not torch.equal(first.mrp_head.eh_proj.weight, second.mrp_head.eh_proj.weight)
    run(["generate", str(output), PROMPT, "--mode", "direct", "--max-new-tokens", "16"])


def test_a_bidirectional_backbone_decodes_and_trains(
    backbone_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["--attention", "bidirectional", "--mask-token-id", "2"]
    run(["generate", str(backbone_folder), PROMPT, *said, "--max-new-tokens", "5", "--stats"])
    captured = capsys.readouterr()
    assert "loaded into the native qwen3, bidirectional, one block, mask token 2" in captured.err
    assert "tokens per forward" in captured.err

    output = tmp_path / "out"
    sizes = ["--layers", "1", "--steps", "2", "--batch-size", "2"]
    run(["train", str(backbone_folder), "demo", "--output", str(output), *said, *sizes])
    trained = MRPForDiffusionLM.from_pretrained(output)
    assert (trained.config.attention_pattern, trained.config.block_length) == ("bidirectional", None)
    answers = []
    for mode in ("plain", "speculative"):
        capsys.readouterr()
        run(["generate", str(output), PROMPT, "--mode", mode, "--block-length", "8", "--max-new-tokens", "16"])
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_records_are_encoded_as_the_demo_encodes_them(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    chosen = problems("train", 5)
    data = tmp_path / "data.json"
    data.write_text(
        json.dumps(
            [
                {
                    "messages": [
                        {"role": "user", "content": p.question},
                        {"role": "assistant", "content": p.answer},
                    ]
                }
                for p in chosen
            ]
        )
    )
    encoded = [encode_conversation(messages, tokenizer, 16, where) for where, messages in read_records(data)]
    assert encoded == [encode(problem, tokenizer) for problem in chosen]


def test_without_a_chat_template_the_prompt_stands_as_it_is(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    messages = [{"role": "user", "content": "tom has 34 pens."}, {"role": "assistant", "content": "#### 34"}]
    encoded = encode_conversation(messages, tokenizer, 4, "here")
    prompt = tokenizer("tom has 34 pens.")["input_ids"]
    assert encoded["input_ids"][: len(prompt)] == prompt
    assert encoded["labels"][: len(prompt)] == [-100] * len(prompt)
    assert len(encoded["input_ids"]) % 4 == 0
    assert encoded["labels"][-1] == tokenizer.eos_token_id


def test_refresh_brings_old_code_up_to_date(
    demo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "old"
    shutil.copytree(demo_folder, folder)
    (folder / "head_mrp.py").write_text("old")
    run(["refresh", str(folder)])
    assert "up to date" in capsys.readouterr().out
    assert (folder / "head_mrp.py").read_text() == (demo_folder / "head_mrp.py").read_text()
