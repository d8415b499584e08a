import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer

from mrp_hf.demo.compare import Comparison, Score, _add_dynamic_controls, compare, count_decodes, untrained_twin
from mrp_hf.demo.report import print_report, save_json, save_picture
from mrp_hf.demo.settings import STATIC, Group, Setting, demo_settings
from mrp_hf.demo.task import problems
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

FIGURES = {"residual_explained": {"residual": [0.5, 0.4, 0.3, 0.2], "direct": [0.1, -0.2, 0.3, 0.4]}}


@pytest.fixture(scope="module")
def comparison(demo_folder: Path) -> Comparison:
    """A small run of every setting; an untrained model is as good as any to count and compare with."""
    model = MRPForDiffusionLM.from_pretrained(demo_folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(demo_folder)
    settings = demo_settings(model.config.block_length)
    decoded: list[int] = []
    result = compare(
        model,
        tokenizer,
        problems("test", 3),
        settings,
        batch_size=2,
        problems_alone=1,
        on_batch=lambda setting, count: decoded.append(count),
    )
    assert sum(decoded) == count_decodes(3, len(settings), 1)
    return result


def test_settings_cover_what_the_demo_promises() -> None:
    settings = demo_settings(16)
    assert settings[0].name == STATIC
    assert settings[0].fields == {}
    assert len({setting.name for setting in settings}) == len(settings)
    steps = {s.value: s.fields["denoising_steps"] for s in settings if s.group == "static, more a step"}
    assert steps == {1: 8, 2: 6, 3: 4}
    speculative = {(s.value, s.drafter) for s in settings if s.group == "speculative"}
    assert speculative == {(k, d) for k in (1, 3, 6) for d in ("trained head", "untrained head", "no head")}


def test_every_setting_is_scored_and_speculative_is_identical(comparison: Comparison) -> None:
    assert [score.setting.name for score in comparison.scores] == [s.name for s in demo_settings(16)]
    static = comparison.scores[0]
    assert static.speed == static.speed_alone == 1
    for score in comparison.group("speculative"):
        assert score.identical == comparison.problems == 3
        assert score.accuracy == static.accuracy
        assert score.forwards <= static.forwards
    for direct, wide in zip(comparison.group("direct"), comparison.group("static, more a step"), strict=True):
        assert direct.head_forwards > 0 == wide.head_forwards
    assert all(score.head_forwards == 0 for score in comparison.scores if score.setting.drafter == "no head")


def test_the_untrained_twin_shares_the_backbone_and_leaves_the_head_alone(demo_folder: Path) -> None:
    model = MRPForDiffusionLM.from_pretrained(demo_folder, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = untrained_twin(model)
    assert twin.backbone is model.backbone
    assert twin.config.num_mrp_layers == model.config.num_mrp_layers
    assert not torch.equal(twin.mrp_head.eh_proj.weight, model.mrp_head.eh_proj.weight)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def _score(group: Group, forwards: float, accuracy: float, head_forwards: float = 0) -> Score:
    return Score(Setting(group, group, {}), accuracy, 0, forwards, head_forwards, 0, 1, 1)


def test_dynamic_control_is_read_off_the_curve_at_equal_forwards_and_equal_cost() -> None:
    points = [_score("plain dynamic", 10, 0.2), _score("plain dynamic", 20, 0.6), _score("static", 40, 1.0)]
    inside, outside = _score("remask", 15, 0.9, head_forwards=10), _score("direct", 5, 0.1, head_forwards=10)
    comparison = Comparison(8, 8, 0, head_cost=0.5, scores=[*points, inside, outside])
    _add_dynamic_controls(comparison)
    assert inside.dynamic_at_equal_forwards == pytest.approx(0.4)
    assert inside.dynamic_at_equal_cost == pytest.approx(0.6)  # 15 + 0.5 * 10 = 20 forwards
    assert outside.dynamic_at_equal_forwards is None
    assert outside.dynamic_at_equal_cost == pytest.approx(0.2)


def test_json_and_tables_show_every_setting(comparison: Comparison, tmp_path: Path) -> None:
    save_json(comparison, FIGURES, tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["problems"] == 3
    assert report["checkpoint"] == FIGURES
    console = Console(width=200, record=True)
    print_report(comparison, FIGURES, console)
    text = console.export_text()
    for score, row in zip(comparison.scores, report["settings"], strict=True):
        assert row["name"] == score.setting.name
        assert row["accuracy"] == score.accuracy
        assert row["tokens_per_forward"] == score.tokens_per_forward
        assert score.setting.name in text
    assert text.count("3/3") == 9
    assert "-20.0" in text


def test_the_table_fits_a_terminal_of_80_columns(comparison: Comparison) -> None:
    console = Console(width=80, record=True)
    print_report(comparison, FIGURES, console)
    text = console.export_text()
    assert "…" not in text
    assert text.count("3/3") == 9


def test_picture_is_a_png_of_some_size(comparison: Comparison, tmp_path: Path) -> None:
    save_picture(comparison, tmp_path / "report.png")
    data = (tmp_path / "report.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    assert width > 1200
    assert height > 500
