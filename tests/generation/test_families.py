"""Every family decodes as an independent slow decoder does, in every mode, and speculation is lossless for each."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model

from mrp_hf import MRPForDiffusionLM

from ..families import MAKERS, exact_dtype, write_checkpoint
from .helpers import RULES, WAYS, answers, counts, draw_prompt, run
from .reference import decode_slowly, greedy, sampler

RAGGED = [draw_prompt(length) for length in (5, 1, 12, 8)]
SAMPLING = {"seed": 11, "temperature": 1.3, "top_k": 9, "top_p": 0.9}
NEW_TOKENS, THRESHOLD, BOUND = 9, 0.2, 1.0
# Margins below this are left to rounding; float32 has more of it.
SMALLEST_GAP = {torch.float64: 1e-6, torch.float32: 1e-4}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    cache = {}

    def get(family, seed=0):
        if (family, seed) not in cache:
            folder = write_checkpoint(family, seed, tmp_path_factory.mktemp("families"))
            torch.manual_seed(seed)
            cache[family, seed] = MRPForDiffusionLM.from_backbone(
                folder, num_mrp_layers=1, dtype=exact_dtype(family), mrp_initializer_range=0.3
            )
        return cache[family, seed]

    return get


def settings_of(rule, sampled, block_length=None):
    fields = {"max_new_tokens": NEW_TOKENS, "remasking_strategy": rule, "confidence_threshold": THRESHOLD}
    fields |= {"entropy_bound": BOUND}
    fields |= {"do_sample": True, **SAMPLING} if sampled else {}
    return fields | ({} if block_length is None else {"block_length": block_length})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", [None, "direct", "remask"])
@pytest.mark.parametrize("family", MAKERS)
def test_equals_the_slow_decoder(models, family, mode, rule):
    compared = 0
    for seed in range(3):
        model = models(family, seed)
        for prompt_length, block_length, sampled in ((6, None, False), (3, 4, True), (9, 5, False)):
            prompt = draw_prompt(prompt_length, seed)
            slow = decode_slowly(
                model,
                prompt,
                NEW_TOKENS,
                mode=mode,
                lookahead_steps=2,
                strategy=rule,
                block_length=block_length,
                threshold=THRESHOLD,
                entropy_bound=BOUND,
                seed=SAMPLING["seed"] if sampled else 7,
                choose=sampler(**SAMPLING) if sampled else greedy,
            )
            if slow.gap < SMALLEST_GAP[model.dtype]:
                continue
            compared += 1
            fields = settings_of(rule, sampled, block_length)
            fast = run(model, [prompt], mrp_mode=mode, mrp_num_lookahead_steps=2, **fields)
            assert answers(fast) == [slow.tokens]
            seen = counts(fast)
            assert (seen["denoise"], seen["head"], seen["remasked"]) == (
                slow.forwards,
                slow.head_forwards,
                slow.remasked,
            )
            assert seen["verify"] == seen["prefill"] == seen["commit"] == 0
    assert compared >= 5


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("family", MAKERS)
def test_speculative_equals_plain(models, family, rule, sampled):
    model = models(family)
    fields = settings_of(rule, sampled)
    for prompts in (RAGGED, RAGGED[2:3]):
        plain = run(model, prompts, **fields)
        for drafter, steps in (("head", 3), ("backbone", 2)):
            speculative = run(
                model, prompts, mrp_mode="speculative", mrp_drafter=drafter, mrp_num_lookahead_steps=steps, **fields
            )
            assert answers(speculative) == answers(plain)
            for row in range(len(prompts)):
                before, after = counts(plain, row), counts(speculative, row)
                assert after["denoise"] + after["verify"] <= before["denoise"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", MAKERS)
def test_a_row_is_the_same_alone_and_in_any_batch(models, family, way):
    model = models(family, 1)
    fields = {"max_new_tokens": NEW_TOKENS, "confidence_threshold": THRESHOLD, "eos_token_id": [3, 4]} | WAYS[way]
    alone = [run(model, [prompt], **fields) for prompt in RAGGED]
    for side in ("left", "right"):
        together = run(model, RAGGED, side=side, junk=5, **fields)
        assert answers(together) == [answers(each)[0] for each in alone]
        for row, each in enumerate(alone):
            assert counts(together, row) == counts(each)


def test_token_types_where_the_backbone_has_them(models):
    types = torch.zeros(1, len(RAGGED[0]), dtype=torch.long)
    fields = {"max_new_tokens": 3}
    assert answers(run(models("bert"), RAGGED[:1], token_type_ids=types, **fields)) == answers(
        run(models("bert"), RAGGED[:1], **fields)
    )
    with pytest.raises(ValueError, match="types other than 0"):
        run(models("bert"), RAGGED[:1], token_type_ids=types + 1)
    with pytest.raises(ValueError, match=r"no token types: .*return_token_type_ids=False"):
        run(models("llada"), RAGGED[:1], token_type_ids=types)


@pytest.mark.parametrize("family", ["sdar", "llada", "Dream", "Fast_dLLM_Qwen", "bert"])
def test_a_lora_adapted_backbone_unmerged_and_merged(models, family):
    model = copy.deepcopy(models(family))
    without = answers(run(model, RAGGED, max_new_tokens=NEW_TOKENS))
    attention = "query|value" if family == "bert" else "q_proj|v_proj"
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=rf"backbone\..*\.({attention})", init_lora_weights=False)
    adapted = get_peft_model(model, config)
    plain = answers(run(adapted, RAGGED, max_new_tokens=NEW_TOKENS))
    assert plain != without
    for way in ("speculative-head", "speculative-backbone"):
        assert answers(run(adapted, RAGGED, max_new_tokens=NEW_TOKENS, **WAYS[way])) == plain
    reads_the_head = (
        {"mrp_mode": "direct", "remasking_strategy": "low_confidence_static"},
        {"mrp_mode": "remask", "confidence_threshold": 0.0},
    )
    for fields in reads_the_head:
        assert run(adapted, RAGGED, max_new_tokens=NEW_TOKENS, **fields).mrp_stats.head_forwards.sum() > 0
    merged = adapted.merge_and_unload()
    assert answers(run(merged, RAGGED, max_new_tokens=NEW_TOKENS)) == plain
