import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from mrp_hf.demo import backbone
from mrp_hf.demo.backbone import BLOCK_LENGTH, BackboneRecipe, backbone_config, encode, pack_noisy_copies
from mrp_hf.demo.task import problems
from mrp_hf.demo.tokenizer import build_tokenizer
from mrp_hf.generation.masks_mrp import CLEAN, PADDING

TINY = BackboneRecipe(
    hidden_size=16, num_layers=1, intermediate_size=16, num_heads=1, head_dim=16, cycles=(3, 3), problems_per_step=2
)


def test_encoding_fills_the_last_block_with_ends_and_hides_the_question() -> None:
    tokenizer = build_tokenizer()
    for problem in problems("train", 50):
        example = encode(problem, tokenizer)
        prompt = example["labels"].count(-100)
        answer = example["input_ids"][prompt:]
        assert len(example["input_ids"]) % BLOCK_LENGTH == 0
        assert answer == example["labels"][prompt:]
        end = answer.index(tokenizer.eos_token_id)
        assert tokenizer.decode(answer[:end]).strip() == problem.answer
        assert set(answer[end:]) == {tokenizer.eos_token_id}


def test_the_two_noisy_copies_mask_each_answer_token_once() -> None:
    tokenizer = build_tokenizer()
    examples = [encode(problem, tokenizer) for problem in problems("train", 5)]
    batch = pack_noisy_copies(examples, tokenizer.mask_token_id, torch.Generator().manual_seed(0))
    for row, example in enumerate(examples):
        answer = {i for i, label in enumerate(example["labels"]) if label != -100}
        learned: list[int] = []
        for copy in (1, 2):
            mine = batch.copies[row] == copy
            masked = mine & (batch.input_ids[row] == tokenizer.mask_token_id)
            assert torch.equal(masked, mine & (batch.labels[row] != -100))
            places = batch.position_ids[row][masked].tolist()
            assert batch.labels[row][masked].tolist() == [example["input_ids"][i] for i in places]
            learned += places
        assert sorted(learned) == sorted(answer)
        clean = batch.copies[row] == CLEAN
        assert batch.input_ids[row][clean].tolist() == example["input_ids"]
        assert (batch.blocks[row][batch.copies[row] == PADDING] == PADDING).all()


def test_a_stopped_training_goes_on_bit_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = build_tokenizer()

    class StoppedError(Exception):
        pass

    real_loss, calls = backbone.diffusion_loss, []

    def loss_until_killed(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise StoppedError
        return real_loss(*arguments)

    backbone.train_backbone(tmp_path / "whole", tokenizer, TINY, save_every=2)
    with monkeypatch.context() as patch:
        patch.setattr(backbone, "diffusion_loss", loss_until_killed)
        with pytest.raises(StoppedError):
            backbone.train_backbone(tmp_path / "halves", tokenizer, TINY, save_every=2)
    assert not (tmp_path / "halves" / "model.safetensors").exists()
    backbone.train_backbone(tmp_path / "halves", tokenizer, TINY, save_every=2)
    whole, halves = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "halves"))
    assert whole.keys() == halves.keys()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    assert json.loads((tmp_path / "whole" / "recipe.json").read_text())["cycles"] == list(TINY.cycles)


def test_each_cycle_warms_up_stays_and_decays_to_zero() -> None:
    recipe = BackboneRecipe(cycles=(100, 50), decay_from=0.6, warmup_steps=10, learning_rate=1.0)
    assert recipe.steps == 150
    rates = [recipe.learning_rate_at(step) for step in range(recipe.steps)]
    expected = {0: 0.1, 9: 1.0, 60: 1.0, 80: 0.5, 99: 1 / 40, 100: 0.1, 109: 1.0, 130: 1.0, 140: 0.5, 149: 1 / 20}
    assert {step: rates[step] for step in expected} == pytest.approx(expected)


def test_a_finished_backbone_trained_further_equals_two_cycles(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    folder = tmp_path / "longer"
    backbone.train_backbone(folder, tokenizer, replace(TINY, cycles=TINY.cycles[:1]))
    longer = backbone.train_backbone(folder, tokenizer, TINY).state_dict()
    whole = backbone.train_backbone(tmp_path / "whole", tokenizer, TINY).state_dict()
    assert all(torch.equal(whole[name], tensor) for name, tensor in longer.items())


def test_muon_gives_matrices_updates_of_one_size() -> None:
    tokenizer = build_tokenizer()
    model = Qwen3ForCausalLM(backbone_config(TINY, tokenizer))
    weight = model.model.layers[0].mlp.gate_proj.weight
    muon = backbone.Muon([weight], lr=1.0, weight_decay=0.0)
    before = weight.detach().clone()
    weight.grad = torch.randn_like(weight) * 1e-4
    muon.step()
    # Orthogonal up to the iteration's tolerance, times 0.2 sqrt(larger side).
    values = torch.linalg.svdvals(before - weight.detach()) / (0.2 * max(weight.shape) ** 0.5)
    assert values.min() > 0.5
    assert values.max() < 1.5
