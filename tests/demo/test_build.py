import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mrp_hf.demo import build
from mrp_hf.demo.backbone import BackboneRecipe
from mrp_hf.demo.build import HeadRecipe, build_demo_checkpoint
from mrp_hf.demo.shipped import read_figures
from mrp_hf.demo.task import problems
from mrp_hf.evaluation import decode
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

BACKBONE = BackboneRecipe(
    hidden_size=16, num_layers=2, intermediate_size=16, num_heads=1, head_dim=16, cycles=(2,), problems_per_step=2
)
HEAD = HeadRecipe(lookahead_steps=2, steps=4, problems_per_step=2, save_steps=2, evaluated_problems=4)


def test_build_leaves_a_whole_checkpoint_and_does_not_repeat_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, work = tmp_path / "checkpoint", tmp_path / "work"
    build_demo_checkpoint(output, work, backbone_recipe=BACKBONE, head_recipe=HEAD)

    model = AutoModelForCausalLM.from_pretrained(output)
    assert isinstance(model, MRPForDiffusionLM)
    assert model.config.mrp_head_trained
    assert model.config.mrp_prediction == "residual"
    assert model.config.backbone_name_or_path is None
    backbone = AutoModelForCausalLM.from_pretrained(work / "backbone").state_dict()
    assert all(torch.equal(tensor, backbone[name]) for name, tensor in model.backbone.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(output)
    decoded = decode(model, tokenizer, [problem.question for problem in problems("test", 2)])
    assert all(len(tokens) <= build.MAX_NEW_TOKENS for tokens in decoded.tokens)

    figures = read_figures(output)
    assert figures is not None
    assert figures["backbone_recipe"]["cycles"] == [2]
    assert figures["head_recipe"]["steps"] == 4
    for name in ("residual", "direct"):
        assert len(figures["residual_explained"][name]) == len(figures["kl_after"][name]) == 2
    assert str(tmp_path) not in "".join(path.read_text() for path in output.glob("*.json"))

    # Nothing is trained again; the head that exists is packed again.
    monkeypatch.setattr(build, "train_backbone", None)
    monkeypatch.setattr(build, "MRPTrainer", None)
    build_demo_checkpoint(tmp_path / "again", work, backbone_recipe=BACKBONE, head_recipe=HEAD)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (output / "model.safetensors").read_bytes()
    assert read_figures(tmp_path / "again") == figures


def test_a_stopped_head_goes_on_from_its_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    build_demo_checkpoint(tmp_path / "whole", work, backbone_recipe=BACKBONE, head_recipe=HEAD)

    class StoppedError(Exception):
        pass

    class StoppedTrainer(build.MRPTrainer):
        def training_step(self, *arguments: object, **named: object) -> torch.Tensor:
            if self.state.global_step == 3:
                raise StoppedError
            return super().training_step(*arguments, **named)

    halves = tmp_path / "halves"
    with monkeypatch.context() as patch:
        patch.setattr(build, "MRPTrainer", StoppedTrainer)
        with pytest.raises(StoppedError):
            build_demo_checkpoint(tmp_path / "x", halves, backbone=work / "backbone", head_recipe=HEAD)
    assert not (halves / "head-residual" / "result.json").exists()
    build_demo_checkpoint(tmp_path / "resumed", halves, backbone=work / "backbone", head_recipe=HEAD)
    whole, resumed = (tmp_path / name / "model.safetensors" for name in ("whole", "resumed"))
    assert whole.read_bytes() == resumed.read_bytes()
    first, second = (read_figures(tmp_path / name) for name in ("whole", "resumed"))
    assert first is not None
    assert second is not None
    assert json.dumps(first["residual_explained"]) == json.dumps(second["residual_explained"])
