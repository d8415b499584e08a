"""Noise, sampling and what they must not depend on."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrp_hf.generation import sampling_mrp

from .helpers import PAD, RULES, WAYS, answers, draw_prompt, run
from .reference import fold, gumbel, hidden_of, logits_of, mix

PROMPTS = [draw_prompt(length) for length in (5, 2, 11)]
SAMPLED = {"do_sample": True, "seed": 3, "max_new_tokens": 10}


@pytest.fixture(scope="module")
def model(small_model):
    return small_model(seed=1)


# Noise


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_mix(word):
    assert sampling_mrp._mix(torch.tensor([word])).tolist() == [mix(word)]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**62 - 1))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_fold(key, value):
    assert sampling_mrp.fold(torch.tensor([key]), torch.tensor([value])).tolist() == [fold(key, value)]
    assert sampling_mrp.fold(torch.tensor([key]), value).tolist() == [fold(key, value)]


@given(st.integers(0, 2**62 - 1), st.integers(0, 2**20), st.integers(0, 2**10))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_gumbel(seed, position, step):
    noise = sampling_mrp.keyed_gumbel(*(torch.tensor([value]) for value in (seed, position, step)), 7)
    expected = [gumbel(seed, position, step, token) for token in range(7)]
    torch.testing.assert_close(noise, torch.tensor([expected]), atol=1e-4, rtol=1e-5)


def test_uniforms_are_inside_the_open_interval(monkeypatch):
    """The largest and the smallest word there is: 0 or 1 would be infinite noise, and NaN at a suppressed token."""
    monkeypatch.setattr(sampling_mrp, "_mix", lambda key: key)
    extremes = sampling_mrp.keyed_uniform(torch.tensor([0, 2**32 - 1, 2**31 - 1, 2**31]))
    assert (extremes > 0).all()
    assert (extremes < 1).all()
    assert (-(-extremes.log()).log()).isfinite().all()


def test_uniforms_are_uniform():
    keys = torch.arange(200_000)
    found = sampling_mrp.keyed_uniform(sampling_mrp.fold(torch.zeros_like(keys), keys))
    share = torch.histc(found, bins=20, min=0, max=1) / len(keys)
    assert (share - 1 / 20).abs().max() < 0.002  # four standard deviations
    assert found.unique().numel() > 0.97 * len(keys)


# Distribution


@pytest.mark.parametrize("source", ["list of seeds", "return index"])
@pytest.mark.parametrize("rule", RULES)
def test_distribution_of_a_block(tiny_model, rule, source):
    """Blocks of two tokens, every outcome enumerated: the most confident of two draws stays, then one more is drawn."""
    model = tiny_model(vocab_size=7, hidden_size=16, initializer_range=0.5, block_length=2, seed=4).double()
    vocabulary, mask, prompt, draws = range(7), 6, [1, 4], 3000
    fields = {"max_new_tokens": 2, "do_sample": True, "remasking_strategy": rule, "confidence_threshold": 0.35}
    fields |= {"pad_token_id": 5}
    if source == "return index":
        output = run(model, [prompt], num_return_sequences=draws, seed=11, **fields)
    else:
        output = run(model, [prompt] * draws, seed=list(range(draws)), **fields)

    def probabilities(ids):
        return logits_of(model, hidden_of(model, prompt + ids, 2)[2:]).double().softmax(-1).tolist()

    def entropy(distribution):
        return -sum(p * math.log(p) for p in distribution if p > 0)

    first = probabilities([mask, mask])
    assert min(map(entropy, first)) > 0.1  # more than the rule's bound: it reveals one at a time
    expected = {pair: 0.0 for pair in itertools.product(vocabulary, repeat=2)}
    for left, right in itertools.product(vocabulary, repeat=2):
        weight = first[0][left] * first[1][right]
        if weight == 0:
            continue
        both = rule == "low_confidence_dynamic" and min(first[0][left], first[1][right]) > 0.35
        if both:
            expected[left, right] += weight
            continue
        left_first = {
            "sequential": 1.0,
            "random": 0.5,
            "entropy_bounded": float(entropy(first[0]) <= entropy(first[1])),
        }.get(rule, float(first[0][left] >= first[1][right]))
        for token, p in enumerate(probabilities([left, mask])[1]):
            expected[left, token] += weight * left_first * p
        for token, p in enumerate(probabilities([mask, right])[0]):
            expected[token, right] += weight * (1 - left_first) * p
    assert sum(expected.values()) == pytest.approx(1)

    found = [tuple(answer) for answer in answers(output)]
    assert len(found) == draws
    likely = [pair for pair in expected if expected[pair] * draws >= 5]
    rest = draws - sum(expected[pair] * draws for pair in likely)
    cells = [(found.count(pair), expected[pair] * draws) for pair in likely]
    cells.append((draws - sum(count for count, _ in cells), rest))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells if mean > 1e-9)
    freedom = len(cells) - 1
    assert freedom >= 4
    # Normal approximation of chi-square (Wilson and Hilferty); 3.1 standard deviations are exceeded once in a thousand.
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert deviation < 3.1


# What sampling depends on


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fields", [{"top_k": 1}, {"temperature": 0.0}, {"top_p": 1e-9}], ids=str)
def test_no_freedom_is_greedy(model, way, fields):
    greedy = run(model, PROMPTS, max_new_tokens=10, **WAYS[way])
    assert answers(run(model, PROMPTS, **SAMPLED, **fields, **WAYS[way])) == answers(greedy)


@pytest.mark.parametrize("way", WAYS)
def test_same_seed_same_output(model, way):
    first, second, other = (answers(run(model, PROMPTS, **SAMPLED | WAYS[way] | {"seed": seed})) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_seed_comes_from_the_default_generator_unless_given(model):
    fields = {"do_sample": True, "max_new_tokens": 10, "seed": None}
    torch.manual_seed(7)
    first, second = (answers(run(model, PROMPTS, **fields)) for _ in range(2))
    torch.manual_seed(7)
    again = answers(run(model, PROMPTS, **fields))
    assert first == again
    assert first != second


def test_given_seed_leaves_the_default_generator_alone(model):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run(model, PROMPTS, **SAMPLED)
    run(model, PROMPTS, max_new_tokens=3)
    assert torch.equal(torch.rand(3), expected)


def test_one_seed_for_all_rows_or_one_a_row(model):
    same = answers(run(model, PROMPTS[:1] * 3, **SAMPLED))
    assert same[0] == same[1] == same[2]
    listed = answers(run(model, PROMPTS[:1] * 3, **SAMPLED | {"seed": [3, 8, 3]}))
    assert listed[0] == listed[2] == same[0]
    assert listed[1] == answers(run(model, PROMPTS[:1], **SAMPLED | {"seed": 8}))[0]
    assert listed[1] != listed[0]


@pytest.mark.parametrize("way", WAYS)
def test_several_sequences_a_prompt(model, way):
    output = run(model, PROMPTS, num_return_sequences=3, **SAMPLED, **WAYS[way])
    rows = answers(output)
    assert len(rows) == 9
    assert output.tokens_per_forward.shape == (9,)
    for prompt in range(3):
        own = rows[3 * prompt : 3 * prompt + 3]
        assert len(set(map(tuple, own))) == 3
        # The first is the one that a single sequence gives; the others do not depend on the other prompts.
        assert own[0] == answers(run(model, [PROMPTS[prompt]], **SAMPLED, **WAYS[way]))[0]
        alone = answers(run(model, [PROMPTS[prompt]], num_return_sequences=3, **SAMPLED, **WAYS[way]))
        assert own == alone


def test_seed_list_with_several_sequences(model):
    fields = {"do_sample": True, "max_new_tokens": 8, "num_return_sequences": 2}
    rows = answers(run(model, PROMPTS[:2], seed=[1, 2], **fields))
    assert rows[:2] == answers(run(model, PROMPTS[:1], seed=1, **fields))
    assert rows[2:] == answers(run(model, PROMPTS[1:2], seed=2, **fields))


def test_return_index_noise_is_documented_hash(model):
    """Sequence number i > 0 of a seed draws with fold(fold(0, seed), i) as its seed."""
    rows = answers(run(model, PROMPTS[:1], num_return_sequences=2, **SAMPLED))
    other = run(model, PROMPTS[:1], **SAMPLED | {"seed": fold(fold(0, 3), 1)})
    assert rows[1] == answers(other)[0]


def test_sampled_tokens_obey_truncation(model):
    """With top-k 2 every token is one of the two most likely at its place when it was revealed."""
    prompt = PROMPTS[0]
    fields = {"remasking_strategy": "sequential", "top_k": 2, "temperature": 5.0}
    for seed in range(5):
        answer = answers(run(model, [prompt], **SAMPLED | {"seed": seed}, **fields))[0]
        ids = list(prompt)
        for token in answer:
            canvas = ids + [model.config.mask_token_id] * (-len(ids) % 4 or 4)
            logits = logits_of(model, hidden_of(model, canvas, 4))[len(ids)]
            assert token in logits.topk(2).indices
            ids.append(token)


def test_padding_token_may_be_generated(model):
    """PAD is an ordinary token for the model; only what the counts say is kept counts as text."""
    output = run(model, PROMPTS, **SAMPLED | {"temperature": 50.0, "max_new_tokens": 40})
    assert any(PAD in answer for answer in answers(output))
    assert all(len(answer) == 40 for answer in answers(output))
