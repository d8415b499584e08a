"""Plain, direct and remask decoding equal the slow decoder, token for token and forward for forward."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mrp_hf.generation.cache_mrp import BlockCache

from .helpers import RULES, WAYS, answers, counts, draw_prompt, run
from .reference import after_lookahead, decode_slowly, greedy, hidden_of, sampler

SMALLEST_GAP = 1e-6


@pytest.fixture(scope="module")
def models(small_model):
    cache = {}

    def get(seed, prediction):
        if (seed, prediction) not in cache:
            cache[seed, prediction] = small_model(seed=seed, mrp_prediction=prediction, num_mrp_layers=2)
        return cache[seed, prediction]

    return get


@st.composite
def cases(draw):
    block_length = draw(st.integers(1, 9))
    sampled = draw(st.booleans())
    return {
        "seed": draw(st.integers(0, 2)),
        "prompt_length": draw(st.integers(0, 20)),
        "max_new_tokens": draw(st.integers(1, 14)),
        "block_length": block_length,
        "denoising_steps": draw(st.none() | st.integers(1, block_length)),
        "strategy": draw(st.sampled_from(RULES)),
        "threshold": draw(st.sampled_from([0.0, 0.2, 0.4, 0.6, 1.0])),
        "entropy_bound": draw(st.sampled_from([0.0, 0.5, 2.0])),
        "tie_ceiling": draw(st.sampled_from([None, None, 0.3])),
        "eos": draw(st.lists(st.integers(0, 20), max_size=4)),
        "suppressed": draw(st.lists(st.integers(0, 20), max_size=3)),
        "sampling": {
            "seed": draw(st.integers(0, 2**62 - 1)),
            "temperature": draw(st.sampled_from([0.5, 1.0, 2.0])),
            "top_k": draw(st.sampled_from([None, 1, 3])),
            "top_p": draw(st.sampled_from([1.0, 0.7])),
            "min_p": draw(st.sampled_from([None, 0.2])),
        }
        if sampled
        else None,
    }


def compare(model, case, mode=None, **mode_settings):
    """Decode with library and reference; returns both outputs."""
    prompt = draw_prompt(case["prompt_length"])
    slow = decode_slowly(
        model,
        prompt,
        case["max_new_tokens"],
        mode=mode,
        strategy=case["strategy"],
        block_length=case["block_length"],
        denoising_steps=case["denoising_steps"],
        threshold=case["threshold"],
        eos=case["eos"],
        suppressed=case["suppressed"],
        entropy_bound=case["entropy_bound"],
        tie_ceiling=case["tie_ceiling"],
        seed=case["sampling"]["seed"] if case["sampling"] else 7,
        choose=sampler(**case["sampling"]) if case["sampling"] else greedy,
        **mode_settings,
    )
    assume(slow.gap > SMALLEST_GAP)
    fast = run(
        model,
        [prompt],
        mrp_mode=mode,
        max_new_tokens=case["max_new_tokens"],
        remasking_strategy=case["strategy"],
        block_length=case["block_length"],
        denoising_steps=case["denoising_steps"],
        confidence_threshold=case["threshold"],
        entropy_bound=case["entropy_bound"],
        tie_ceiling=case["tie_ceiling"],
        eos_token_id=case["eos"] or None,
        suppress_tokens=case["suppressed"] or None,
        **({"do_sample": True, **case["sampling"]} if case["sampling"] else {}),
        **{{"lookahead_steps": "mrp_num_lookahead_steps"}.get(k, k): v for k, v in mode_settings.items()},
    )
    assert answers(fast) == [slow.tokens]
    assert counts(fast)["denoise"] == slow.forwards
    assert counts(fast)["head"] == slow.head_forwards
    assert counts(fast)["remasked"] == slow.remasked
    assert all(counts(fast)[kind] == 0 for kind in ("verify", "prefill", "commit"))
    return fast, slow


@given(case=cases())
@settings(max_examples=50, deadline=None, derandomize=True)
def test_plain(models, case):
    compare(models(case["seed"], "residual"), case)


@given(case=cases(), lookahead_steps=st.integers(1, 4), prediction=st.sampled_from(["residual", "direct"]))
@settings(max_examples=35, deadline=None, derandomize=True)
def test_direct(models, case, lookahead_steps, prediction):
    compare(models(case["seed"], prediction), case, "direct", lookahead_steps=lookahead_steps)


@given(case=cases(), remask_threshold=st.sampled_from([None, 0.0, 0.1, 0.3, 0.8, 1.0]))
@settings(max_examples=35, deadline=None, derandomize=True)
def test_remask(models, case, remask_threshold):
    compare(models(case["seed"], "residual"), case, "remask", remask_threshold=remask_threshold)


@pytest.mark.parametrize("prompt_length", range(9))
def test_static_forwards_are_the_masks_of_the_blocks(models, prompt_length):
    output = run(models(0, "residual"), [draw_prompt(prompt_length)], block_length=4, max_new_tokens=6)
    end = -(-(prompt_length + 6) // 4) * 4
    assert counts(output)["denoise"] == end - prompt_length


@pytest.mark.parametrize("way", ["direct", "remask", "speculative-head"])
def test_head_behind_its_cache_is_the_head_over_the_whole_text(models, monkeypatch, way):
    """Its keys and values of finished blocks come from clean ids and clean hidden states, in every mode.

    In speculative mode no token of the output depends on it, so it is looked at here.
    """
    model = models(1, "residual")
    calls, kept = [], []
    step, keep = model.mrp_step, BlockCache.keep

    def record_step(input_ids, hidden_states, position_ids, *args, **kwargs):
        following = step(input_ids, hidden_states, position_ids, *args, **kwargs)
        calls.append((input_ids[0, -2:], hidden_states[0, -2:], int(position_ids[0, -2]), following[0, -2:]))
        return following

    def record_keep(cache, *args):
        kept.append(1)
        keep(cache, *args)

    monkeypatch.setattr(model, "mrp_step", record_step)
    monkeypatch.setattr(BlockCache, "keep", record_keep)
    prompt = draw_prompt(5)
    output = run(model, [prompt], block_length=2, max_new_tokens=35, confidence_threshold=0.1, **WAYS[way])
    text = prompt + answers(output)[0]
    assert len(calls) > 5
    for ids, hidden, start, following in calls:
        row = text[:start] + ids.tolist()
        clean = hidden_of(model, row, 2)
        expected = after_lookahead(model, row, clean, torch.cat([clean[:start], hidden]), start, 2)
        torch.testing.assert_close(following, expected[start:])
    assert bool(kept) == (way == "speculative-head")  # a kept candidate is among what the head reads
