"""Speculative decoding gives what plain decoding gives, whatever drafts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .helpers import EOS, RULES, answers, counts, draw_prompt, run, set_head

HEADS = ("random", "zero", "constant", "ends", "huge")
RAGGED = [draw_prompt(length) for length in (5, 1, 12, 8)]


@pytest.fixture(scope="module")
def models(small_model):
    return {kind: set_head(small_model(seed=3), kind) for kind in HEADS}


def assert_lossless(model, prompts, lookahead_steps, drafter, plain=None, **fields):
    """Compare with `plain`, made here unless given; returns both outputs."""
    plain = run(model, prompts, **fields) if plain is None else plain
    speculative = run(
        model,
        prompts,
        mrp_mode="speculative",
        mrp_num_lookahead_steps=lookahead_steps,
        mrp_drafter=drafter,
        **fields,
    )
    assert answers(speculative) == answers(plain)
    for row in range(len(prompts)):
        before, after = counts(plain, row), counts(speculative, row)
        assert after["denoise"] + after["verify"] <= before["denoise"]
        assert after["prefill"] == after["commit"] == 0
        assert all(
            accepted <= proposed for accepted, proposed in zip(after["accepted"], after["proposed"], strict=True)
        )
        assert after["accepted"] == sorted(after["accepted"], reverse=True)
    return plain, speculative


@st.composite
def cases(draw):
    return {
        "block_length": draw(st.sampled_from([1, 3, 4, 8, 16])),
        "remasking_strategy": draw(st.sampled_from(RULES)),
        "confidence_threshold": draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])),
        "eos_token_id": draw(st.none() | st.lists(st.integers(0, EOS), min_size=1, max_size=4)),
        "max_new_tokens": draw(st.integers(1, 20)),
    } | (
        {"do_sample": True, "seed": draw(st.integers(0, 2**40)), "temperature": draw(st.sampled_from([0.3, 1.0, 3.0]))}
        if draw(st.booleans())
        else {}
    )


@given(
    fields=cases(),
    head=st.sampled_from(HEADS),
    drafter=st.sampled_from(["head", "backbone"]),
    lookahead_steps=st.integers(1, 6),
    batch=st.sampled_from([RAGGED, RAGGED[:1], RAGGED[2:3]]),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_any_drafter(models, fields, head, drafter, lookahead_steps, batch):
    assert_lossless(models[head], batch, lookahead_steps, drafter, **fields)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_and_depth(models, head):
    fields = {"max_new_tokens": 9, "eos_token_id": EOS}
    plain = run(models[head], RAGGED, **fields)
    for lookahead_steps in range(1, 7):
        assert_lossless(models[head], RAGGED, lookahead_steps, "head", plain, **fields)


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [("head", "low_confidence_static"), ("backbone", "sequential"), ("head", "low_confidence_dynamic")],
)
def test_long(models, drafter, rule):
    fields = {"remasking_strategy": rule, "block_length": 8, "max_new_tokens": 203, "confidence_threshold": 0.3}
    plain, _ = assert_lossless(models["random"], RAGGED[:2], 3, drafter, **fields)
    assert [len(answer) for answer in answers(plain)] == [203, 203]


def test_more_lookahead_steps_than_a_block_has_tokens(models):
    _, speculative = assert_lossless(models["zero"], RAGGED, 20, "head", max_new_tokens=9)
    assert not any(counts(speculative)["proposed"][4:])


@pytest.mark.parametrize("prediction", ["residual", "direct"])
def test_either_kind_of_head(small_model, prediction):
    model = small_model(mrp_prediction=prediction, num_mrp_layers=2)
    assert_lossless(model, RAGGED, 3, "head", max_new_tokens=15)


def test_single_precision(small_model):
    """Exact in float32 too: these choices are made by margins far above rounding."""
    for seed in range(4):
        model = small_model(torch.float32, seed=seed)
        assert_lossless(model, RAGGED, 3, "head", max_new_tokens=15)


def test_backbone_drafts_need_no_head(small_model):
    model = small_model(num_mrp_layers=0)
    _, speculative = assert_lossless(model, RAGGED, 3, None, max_new_tokens=15)
    assert counts(speculative)["head"] == 0
    assert sum(counts(speculative)["accepted"]) > 0
