"""The approximate caches of bidirectional backbones: what they read is what the block's first forward left."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from mrp_hf import MRPForDiffusionLM

from ..families import exact_dtype, write_checkpoint
from .helpers import RULES, answers, counts, draw_prompt, run

FAMILIES = ("llada", "Dream", "a2d-qwen3-mdlm")
RAGGED = [draw_prompt(length) for length in (5, 1, 12, 8)]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    folder = write_checkpoint(request.param, 2, tmp_path_factory.mktemp("families"))
    torch.manual_seed(0)
    return MRPForDiffusionLM.from_backbone(
        folder, num_mrp_layers=1, dtype=exact_dtype(request.param), mrp_initializer_range=0.3
    )


@torch.no_grad()
def decode_slowly(model: MRPForDiffusionLM, prompt: list[int], new: int, block_length: int, kind: str) -> list[int]:
    """Static decoding of one prompt, with transformers' own cache put together by hand for every forward."""
    mask, shift = model.config.mask_token_id, int(model.config.logit_shift)
    ids = torch.tensor([prompt + [mask] * new])
    total = ids.shape[1]
    places = torch.arange(total)[None]
    for start in range(len(prompt), total, block_length):
        end = min(start + block_length, total)
        masked = set(range(start, end))
        first: DynamicCache | None = None
        hidden = torch.empty(0)
        while masked:
            if first is None:
                first = DynamicCache()
                hidden = caught(model, ids, places, torch.zeros(1, 1, total, total), first)
            else:
                window = list(range(start, end if kind == "dual" else total))
                outside = [place for place in range(total) if place not in window]
                cache = DynamicCache()
                for number, layer in enumerate(first.layers):
                    cache.update(layer.keys[:, :, outside], layer.values[:, :, outside], number)
                visible = torch.zeros(1, 1, len(window), total)
                hidden = hidden.clone()
                hidden[window] = caught(model, ids[:, window], places[:, window], visible, cache)
            aligned = torch.cat([hidden[:1], hidden[:-1]]) if shift else hidden
            logits = model.backbone.lm_head(aligned) * model.config.logit_scale
            logits[:, mask] = -torch.inf
            best = max(sorted(masked), key=lambda place: float(logits[place].softmax(-1).max()))
            ids[0, best] = int(logits[best].argmax())
            masked.remove(best)
    return ids[0, len(prompt) :].tolist()


def caught(model: MRPForDiffusionLM, ids: Tensor, places: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
    output = model.backbone.model(
        input_ids=ids, position_ids=places, attention_mask=mask.to(model.dtype), cache=cache, use_cache=True
    )
    return output.last_hidden_state[0]


@pytest.mark.parametrize("kind", ["prefix", "dual"])
@pytest.mark.parametrize("block_length", [3, 4])
def test_equals_a_cache_put_together_by_hand(model, kind, block_length):
    differs = 0
    for prompt in RAGGED:
        fields = {"block_length": block_length, "max_new_tokens": 10}
        fast = run(model, [prompt], approximate_cache=kind, **fields)
        assert answers(fast) == [decode_slowly(model, prompt, 10, block_length, kind)]
        assert counts(fast)["denoise"] == 10
        differs += answers(fast) != answers(run(model, [prompt], **fields))
    assert differs > 0  # else nothing was approximated


@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_one_forward_a_block_is_exact(model, kind):
    fields = {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.0, "block_length": 4}
    exact = run(model, RAGGED, max_new_tokens=10, **fields)
    assert answers(run(model, RAGGED, max_new_tokens=10, approximate_cache=kind, **fields)) == answers(exact)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_rows_are_independent_and_speculation_is_lossless(model, kind, rule):
    fields = {"approximate_cache": kind, "block_length": 4, "max_new_tokens": 10, "remasking_strategy": rule}
    fields |= {"confidence_threshold": 0.3, "eos_token_id": [3, 4]}
    plain = run(model, RAGGED, **fields)
    for row, prompt in enumerate(RAGGED):
        alone = run(model, [prompt], **fields)
        assert answers(alone) == answers(plain)[row : row + 1]
        assert counts(alone) == counts(plain, row)
    for drafter in ("head", "backbone"):
        speculative = run(model, RAGGED, mrp_mode="speculative", mrp_drafter=drafter, **fields)
        assert answers(speculative) == answers(plain)


@pytest.mark.parametrize("mode", ["direct", "remask"])
@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_modes_that_read_the_head(model, kind, mode):
    fields = {"approximate_cache": kind, "block_length": 4, "max_new_tokens": 10, "confidence_threshold": 0.3}
    together = run(model, RAGGED, mrp_mode=mode, **fields)
    assert answers(together) == [answers(run(model, [prompt], mrp_mode=mode, **fields))[0] for prompt in RAGGED]


def test_backbones_that_cannot_have_one(tmp_path, small_model):
    bert = MRPForDiffusionLM.from_backbone(write_checkpoint("bert", 0, tmp_path), num_mrp_layers=0)
    with pytest.raises(ValueError, match="`approximate_cache` is 'dual', but the backbone takes no cache"):
        run(bert, RAGGED[:1], approximate_cache="dual")
    with pytest.raises(ValueError, match="is block-causal, and its block cache is exact"):
        run(small_model(), RAGGED[:1], approximate_cache="prefix")
    with pytest.raises(ValueError, match="`approximate_cache` is 'both': choose one of prefix, dual"):
        run(bert, RAGGED[:1], approximate_cache="both")
