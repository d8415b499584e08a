"""Rows are independent: each gives alone what it gives in any batch."""

import pytest
import torch

from .helpers import (
    EOS,
    MASK,
    PAD,
    RULES,
    VOCABULARY,
    WAYS,
    ScriptedModel,
    answers,
    counts,
    draw_prompt,
    pad,
    run,
    script,
)

PROMPTS = [draw_prompt(length) for length in (3, 9, 4, 17, 26)]  # blocks have 4 tokens
CHOICES = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": [5, 6, 7, 8, 9], "temperature": 1.5, "top_k": 9},
}


@pytest.fixture(scope="module")
def model(small_model):
    return small_model(num_mrp_layers=2)


def one_by_one(model, prompts=PROMPTS, **fields):
    """Answers and counts of every prompt decoded alone."""
    found = []
    for row, prompt in enumerate(prompts):
        own = {"seed": fields["seed"][row]} if "seed" in fields else {}
        output = run(model, [prompt], **fields | own)
        found.append((*answers(output), counts(output)))
    return found


def together(model, side, junk, prompts=PROMPTS, **fields):
    output = run(model, prompts, side=side, junk=junk, **fields)
    return [(answer, counts(output, row)) for row, answer in enumerate(answers(output))]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", WAYS)
def test_alone_and_in_a_batch(model, way, rule, choice):
    fields = {
        "max_new_tokens": 9,
        "remasking_strategy": rule,
        "confidence_threshold": 0.4,
        **WAYS[way],
        **CHOICES[choice],
    }
    fields["eos_token_id"] = answers(run(model, PROMPTS, **fields))[1][5]  # so that rows end at different times
    alone = one_by_one(model, **fields)
    assert together(model, "left", None, **fields) == alone
    assert together(model, "right", 1, **fields) == alone
    assert len(alone[1][0]) <= 6


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_very_different_lengths(model, way):
    """`max_length` counts each row's real tokens: the shortest prompt writes long after the longest has finished."""
    fields = {"max_length": 30, "denoising_steps": 2, "confidence_threshold": 0.3, **WAYS[way]}
    alone = one_by_one(model, **fields)
    assert [len(answer) for answer, _ in alone] == [27, 21, 26, 13, 4]
    assert together(model, "left", None, **fields) == alone


@pytest.mark.parametrize("way", ["direct", "remask", "speculative-head", "speculative-backbone"])
@pytest.mark.parametrize(
    ("block_length", "rule"),
    [(1, "low_confidence_static"), (2, "low_confidence_static"), (2, "low_confidence_dynamic")],
)
def test_rows_in_short_blocks(model, way, rule, block_length):
    fields = {
        "prompts": PROMPTS[:4],
        "max_length": 21,
        "block_length": block_length,
        "remasking_strategy": rule,
        "confidence_threshold": 0.0,
        **WAYS[way],
    }
    assert together(model, "left", None, **fields) == one_by_one(model, **fields)


def test_eager_attention(small_model):
    """It adds masks where sdpa reads them."""
    fields = {"max_new_tokens": 7, **WAYS["speculative-head"]}
    eager = small_model(num_mrp_layers=2, attn_implementation="eager")
    alone = one_by_one(eager, **fields)
    assert together(eager, "left", 2, **fields) == alone
    assert [answer for answer, _ in alone] == answers(run(small_model(num_mrp_layers=2), PROMPTS, **fields))


def test_head_that_rests_while_a_row_finishes():
    """It has many blocks to catch up with then, in one row; the other, at the canvas' end, must not be in the way."""
    sure, unsure = {0: 0.95}, {1: 0.5}
    choices = [unsure] * 8 + [sure, sure] + [sure, sure]
    model = ScriptedModel(script(choices, VOCABULARY), script(choices, VOCABULARY), block_length=2)
    ids, mask = pad([[0] * 10, [0] * 2])
    output = model.generate(
        ids, attention_mask=mask, max_length=12, mrp_mode="remask", pad_token_id=PAD, return_dict_in_generate=True
    )
    assert answers(output) == [[0] * 2, [1] * 6 + [0] * 4]
    assert output.mrp_stats.forwards["denoise"].tolist() == [1, 6 + 1 + 1]
    assert output.mrp_stats.head_forwards.tolist() == [1, 2]


@pytest.mark.parametrize("way", WAYS)
def test_order_of_rows_changes_nothing(model, way):
    fields = {"max_new_tokens": 6, **WAYS[way]}
    assert answers(run(model, PROMPTS[::-1], **fields)) == answers(run(model, PROMPTS, **fields))[::-1]


@pytest.mark.parametrize("way", WAYS)
def test_empty_prompt(model, way):
    """Nothing to complete is a prompt too, alone or in a batch."""
    fields = {"max_new_tokens": 6, **WAYS[way]}
    ids = torch.full((1, 3), PAD)
    ids = model.generate(ids, attention_mask=torch.zeros_like(ids), pad_token_id=PAD, eos_token_id=None, **fields)
    alone = ids[0, 3:].tolist()
    assert answers(run(model, [[], PROMPTS[1]], **fields))[0] == alone


def test_padding_in_the_middle_is_skipped(model):
    prompt = PROMPTS[1]
    ids, mask = pad([prompt])
    holes = torch.cat([ids[:, :4], torch.full((1, 2), EOS), ids[:, 4:]], dim=1)
    mask = torch.cat([mask[:, :4], torch.zeros(1, 2, dtype=torch.long), mask[:, 4:]], dim=1)
    sequences = model.generate(holes, attention_mask=mask, max_new_tokens=7, eos_token_id=None, pad_token_id=PAD)
    assert sequences[0, 11:].tolist() == answers(run(model, [prompt], max_new_tokens=7))[0]


@pytest.mark.parametrize("kind", [torch.bool, torch.float32, torch.int32])
def test_mask_of_any_number_type(model, kind):
    ids, mask = pad(PROMPTS)
    fields = {"max_new_tokens": 3, "eos_token_id": None, "pad_token_id": PAD}
    expected = model.generate(ids, attention_mask=mask, **fields)
    assert torch.equal(model.generate(ids, attention_mask=mask.to(kind), **fields), expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_ids_of_any_integer_type(model, way, kind):
    ids, mask = pad(PROMPTS)
    fields = {"attention_mask": mask, "max_new_tokens": 3, "eos_token_id": None, "pad_token_id": PAD, **WAYS[way]}
    assert torch.equal(model.generate(ids.to(kind), **fields), model.generate(ids, **fields))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_inferred_with_a_warning(model, side, caplog):
    ids, mask = pad(PROMPTS, side)
    fields = {"max_new_tokens": 3, "eos_token_id": None, "pad_token_id": PAD}
    expected = model.generate(ids, attention_mask=mask, **fields)
    assert torch.equal(model.generate(ids, **fields), expected)


def test_prompt_with_mask_and_special_tokens_as_text(model):
    """Places to fill are known by place: these ids are left alone and the answer is found as behind any other text."""
    prompt = [MASK, 3, MASK, EOS, PAD, MASK]
    for way in WAYS.values():
        output = run(model, [prompt, PROMPTS[0]], max_new_tokens=7, eos_token_id=EOS, **way)
        assert output.sequences[0, :6].tolist() == prompt
        answer = answers(output)[0]
        assert MASK not in answer
        assert answer == answers(run(model, [prompt], max_new_tokens=7, eos_token_id=EOS, **way))[0]
        assert len(answer) == 7 or answer[-1] == EOS
