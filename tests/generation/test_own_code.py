"""A backbone of no known family, loaded by its own code: it takes no cache, and nothing about it is guessed."""

import pytest
import torch

from mrp_hf import MRPForDiffusionLM

from ..families import EOS, MASK, PAD, write_own_code
from .helpers import RULES, WAYS, answers, counts, draw_prompt, run
from .reference import decode_slowly

RAGGED = [draw_prompt(length) for length in (5, 1, 12, 8)]
SHAPES = [("block_causal", False), ("block_causal", True), ("bidirectional", False), ("bidirectional", True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_own_code(tmp_path_factory.mktemp("strange"), eos_token_id=EOS, pad_token_id=PAD)


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]}-{'shifted' if shape[1] else 'unshifted'}")
def model(request, folder):
    pattern, shift = request.param
    torch.manual_seed(0)
    return MRPForDiffusionLM.from_backbone(
        folder,
        num_mrp_layers=1,
        dtype=torch.float64,
        trust_remote_code=True,
        attention_pattern=pattern,
        logit_shift=shift,
        mask_token_id=MASK,
        block_length=4,
        mrp_initializer_range=0.3,
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", [None, "direct", "remask"])
def test_equals_the_slow_decoder(model, mode, rule):
    compared = 0
    for prompt in RAGGED:
        slow = decode_slowly(
            model, prompt, 9, mode=mode, lookahead_steps=2, strategy=rule, threshold=0.2, entropy_bound=1.0
        )
        if slow.gap < 1e-6:  # left to rounding
            continue
        compared += 1
        fields = {"mrp_num_lookahead_steps": 2, "remasking_strategy": rule, "confidence_threshold": 0.2}
        fields |= {"entropy_bound": 1.0}
        fast = run(model, [prompt], mrp_mode=mode, max_new_tokens=9, **fields)
        assert answers(fast) == [slow.tokens]
        assert (counts(fast)["denoise"], counts(fast)["head"]) == (slow.forwards, slow.head_forwards)
    assert compared >= 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", ["speculative-head", "speculative-backbone"])
def test_speculative_equals_plain(model, way, rule):
    fields = {"max_new_tokens": 11, "remasking_strategy": rule, "do_sample": True, "seed": 4}
    plain = run(model, RAGGED, **fields)
    assert answers(run(model, RAGGED, **fields, **WAYS[way])) == answers(plain)
    assert answers(run(model, RAGGED[1:2], **fields, **WAYS[way])) == answers(plain)[1:2]


def test_the_head_is_saved_alone(model, tmp_path):
    with pytest.raises(ValueError, match="`head_only` is False, but the backbone runs by code of its own"):
        model.save_pretrained(tmp_path, head_only=False)
    assert not any(tmp_path.iterdir())
    model.save_pretrained(tmp_path)
    again = MRPForDiffusionLM.from_pretrained(tmp_path, trust_remote_code=True)
    for way in WAYS.values():
        fields = {"max_new_tokens": 9, "confidence_threshold": 0.2, **way}
        assert answers(run(again, RAGGED, **fields)) == answers(run(model, RAGGED, **fields))
    with pytest.raises(ValueError, match=r"in no row of the table .* `trust_remote_code=True`"):
        MRPForDiffusionLM.from_pretrained(tmp_path)


def test_what_is_not_said_is_named(folder):
    said = {"attention_pattern": "block_causal", "logit_shift": False, "mask_token_id": MASK, "block_length": 4}
    for field in said:
        others = {name: value for name, value in said.items() if name != field}
        with pytest.raises(ValueError, match=f"nothing is known: pass `{field}=...` as it was trained"):
            MRPForDiffusionLM.from_backbone(folder, trust_remote_code=True, **others)
    with pytest.raises(ValueError, match=r"in no row of the table .* `trust_remote_code=True`"):
        MRPForDiffusionLM.from_backbone(folder, **said)


def test_widths_that_its_config_does_not_say(tmp_path):
    folder = write_own_code(tmp_path / "strange", intermediate_size=None)
    said = {"attention_pattern": "block_causal", "logit_shift": False, "mask_token_id": MASK, "block_length": 4}
    with pytest.raises(ValueError, match=r"does not say \['intermediate_size'\], which its head needs"):
        MRPForDiffusionLM.from_backbone(folder, trust_remote_code=True, **said)
    model = MRPForDiffusionLM.from_backbone(folder, trust_remote_code=True, num_mrp_layers=0, **said)
    assert len(answers(run(model, RAGGED[:1], max_new_tokens=3))[0]) == 3
