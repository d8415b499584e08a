"""Half precision runs everywhere; choices may differ where logits are close, but nowhere else."""

import pytest
import torch

from .helpers import MASK, VOCABULARY, WAYS, answers, draw_prompt, run
from .reference import hidden_of, logits_of

PROMPTS = [draw_prompt(length) for length in (5, 1, 10)]


@pytest.mark.parametrize(
    ("dtype", "attention"), [(torch.bfloat16, "sdpa"), (torch.bfloat16, "eager"), (torch.float16, "sdpa")]
)
@pytest.mark.parametrize("way", WAYS)
def test_runs_finite(small_model, monkeypatch, way, dtype, attention):
    model = small_model(dtype, attn_implementation=attention)
    project = model.project

    def checked(hidden):
        logits = project(hidden)
        assert logits.dtype == dtype
        assert logits.isfinite().all()
        return logits

    monkeypatch.setattr(model, "project", checked)
    for fields in ({}, {"do_sample": True, "seed": 1, "top_k": 5, "top_p": 0.9}):
        output = run(model, PROMPTS, max_new_tokens=7, confidence_threshold=0.4, **WAYS[way], **fields)
        rows = answers(output)
        assert [len(row) for row in rows] == [7, 7, 7]
        assert all(0 <= token < VOCABULARY and token != MASK for row in rows for token in row)


@pytest.mark.parametrize("way", ["plain", "speculative-head", "speculative-backbone"])
def test_choices_are_those_of_float32_or_close(small_model, way):
    """Replayed from left to right in float32, every token's logit is the largest, up to what bfloat16 rounds away."""
    half = small_model(torch.bfloat16)
    exact = small_model(torch.float32)
    exact.load_state_dict(half.state_dict())
    fields = {"max_new_tokens": 11, "remasking_strategy": "sequential", **WAYS[way]}
    for prompt, answer in zip(PROMPTS, answers(run(half, PROMPTS, **fields)), strict=True):
        ids = list(prompt)
        for token in answer:
            canvas = ids + [MASK] * (4 - len(ids) % 4)
            logits = logits_of(exact, hidden_of(exact, canvas, 4))[len(ids)]
            spread = logits[logits.isfinite()].std()
            assert logits.max() - logits[token] < 0.15 * spread
            ids.append(token)
