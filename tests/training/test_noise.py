"""Noise is a pure function of (seed, epoch, sample), masks answers only, and reveals what it says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrp_hf.training.noise import EVALUATION_EPOCH, MIN_MASK_PROBABILITY, Noise, draw_noise

MASK = 999


def noise(rows=8, width=32, prompt=5, first_sample=0, block_length=8, steps=3, **settings):
    ids = torch.arange(rows * width).view(rows, width) % 900
    answer = torch.arange(width).expand(rows, -1) >= prompt
    samples = torch.arange(first_sample, first_sample + rows)
    arguments = {"seed": 0, "epoch": 0, "mask_token_id": MASK, "num_lookahead_steps": steps} | settings
    return ids, answer, draw_noise(ids, answer, samples, block_length=block_length, **arguments)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(-1, 5),
    block_length=st.sampled_from([1, 2, 4, 8, 16]),
    prompt=st.integers(0, 31),
    steps=st.integers(1, 5),
    reveal_min=st.integers(1, 4),
    more=st.integers(0, 3),
)
def test_states_are_what_they_say(seed, epoch, block_length, prompt, steps, reveal_min, more):
    reveal = {"reveal_min": reveal_min, "reveal_max": reveal_min + more}
    ids, answer, drawn = noise(prompt=prompt, seed=seed, epoch=epoch, block_length=block_length, steps=steps, **reveal)
    assert drawn.states.shape == drawn.masked.shape == (steps + 1, *ids.shape)
    assert not (drawn.masked & ~answer).any()
    assert torch.equal(drawn.states == MASK, drawn.masked)
    assert torch.equal(drawn.states.where(~drawn.masked, ids), ids.expand_as(drawn.states))
    assert not (drawn.masked[1:] & ~drawn.masked[:-1]).any()
    in_blocks = drawn.p_mask.view(len(ids), -1, block_length)
    assert torch.equal(in_blocks, in_blocks[..., :1].expand_as(in_blocks))
    assert (drawn.p_mask >= MIN_MASK_PROBABILITY).all()
    assert (drawn.p_mask <= 1).all()
    left = drawn.masked.view(steps + 1, len(ids), -1, block_length).sum(-1)
    revealed = left[:-1] - left[1:]
    assert (revealed <= reveal["reveal_max"]).all()
    assert (revealed >= left[:-1].clamp(max=reveal_min)).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_sample_gets_the_same_noise_in_any_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 900, (6, 24), generator=generator)
    answer = torch.rand(6, 24, generator=generator) < 0.8
    samples = torch.randperm(1000, generator=generator)[:6]
    fixed = {"block_length": 4, "mask_token_id": MASK, "num_lookahead_steps": 2, "reveal_max": 3}

    def draw(rows, width=24):
        wide = torch.nn.functional.pad(ids[rows], (0, width - 24))
        answers = torch.nn.functional.pad(answer[rows], (0, width - 24))
        return draw_noise(wide, answers, samples[rows], seed=seed, epoch=1, **fixed)

    together = draw(torch.arange(6))
    order = torch.randperm(6, generator=generator)
    for part in (order[:1], order[1:4], order):
        alone = draw(part, width=36)  # other neighbours, another order, another padding
        assert torch.equal(alone.states[..., :24], together.states[:, part])
        assert torch.equal(alone.masked[..., :24], together.masked[:, part])
        assert torch.equal(alone.p_mask[:, :24], together.p_mask[part])
        assert not alone.masked[..., 24:].any()


def test_global_generators_are_neither_read_nor_moved():
    torch.manual_seed(1)
    _, _, first = noise()
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    _, _, second = noise()
    torch.random.set_rng_state(state)
    _, _, third = noise()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.states, second.states)
    assert torch.equal(first.states, third.states)


def test_seed_epoch_and_sample_each_change_the_noise():
    base = noise()[2]
    others = [noise(seed=1), noise(epoch=1), noise(epoch=EVALUATION_EPOCH), noise(first_sample=100)]
    for _, _, other in others:
        assert not torch.equal(base.masked, other.masked)
        assert not torch.equal(base.p_mask, other.p_mask)


def many(**settings) -> Noise:
    return noise(rows=400, width=160, prompt=0, block_length=16, **settings)[2]


def test_masking_follows_its_probability():
    drawn = many(steps=1)
    probability = drawn.p_mask.view(-1, 16)[:, 0]
    share = drawn.masked[0].view(-1, 16).float().mean(-1)
    assert abs(probability.mean() - 0.5) < 0.02  # uniform: mean 1/2, variance 1/12
    assert abs(probability.var() - 1 / 12) < 0.005
    for low in torch.arange(0, 1, 0.1):
        inside = (probability >= low) & (probability < low + 0.1)
        assert abs(share[inside].mean() - probability[inside].mean()) < 0.02
    weighted = drawn.masked[0] / drawn.p_mask  # what the weights 1 / p_mask are for
    assert abs(weighted.mean() - 1) < 0.05


def test_every_masked_place_is_as_likely_to_be_revealed():
    drawn = many(steps=1)
    blocks = drawn.masked.view(2, -1, 16)
    full = blocks[0].sum(-1) > 8
    revealed = (blocks[0] & ~blocks[1])[full].float().mean(0)
    expected = (blocks[0][full] / blocks[0][full].sum(-1, keepdim=True)).mean(0)
    assert (revealed - expected).abs().max() < 0.03


def test_reveal_counts_are_uniform_in_their_range():
    drawn = many(steps=1, reveal_min=1, reveal_max=4)
    left = drawn.masked.view(2, -1, 16).sum(-1)
    roomy = left[0] >= 4
    counts = torch.bincount((left[0] - left[1])[roomy], minlength=5) / roomy.sum()
    assert counts[0] == 0
    assert (counts[1:] - 0.25).abs().max() < 0.03
