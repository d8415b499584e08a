"""The reveal rules on their own, position by position."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrp_hf.generation.reveal_mrp import Proposal, RevealRule, State, write

from .helpers import RULES
from .reference import positions_of_step


def state_of(masked, step=0):
    return State(torch.arange(len(masked))[None], torch.tensor([masked]), torch.tensor([step]))


def proposal_of(confidence):
    """Entropies and lots are such that they order positions as confidences do, and the other way round."""
    values = torch.tensor([confidence])
    return Proposal(torch.arange(100, 100 + len(confidence))[None], values, entropy=1 - values, lot=-values)


@given(
    st.sampled_from(RULES),
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])), min_size=1, max_size=8),
    st.integers(1, 8),
    st.integers(0, 8),
    st.sampled_from([0.0, 0.25, 0.6, 1.0]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_positions(strategy, places, steps, step, threshold):
    """Ties included: confidences are few and exact here."""
    steps = min(steps, len(places))
    masked, confidence = [m for m, _ in places], [c if m else -1.0 for m, c in places]
    rule = RevealRule(strategy, len(places), steps, threshold, entropy_bound=threshold)
    found = rule.positions(proposal_of(confidence), state_of(masked, step))
    open_places = {place: confidence[place] for place, m in enumerate(masked) if m}
    expected = []
    if open_places:
        entropy, lot = ({place: sign * value for place, value in open_places.items()} for sign in (-1, -1))
        expected, _ = positions_of_step(
            strategy,
            open_places,
            step,
            len(places),
            steps,
            threshold,
            {p: 1 + e for p, e in entropy.items()},
            lot,
            threshold,
        )
    assert found[0].nonzero().flatten().tolist() == sorted(expected)


@pytest.mark.parametrize(("block_length", "steps"), [(16, 16), (16, 3), (7, 4), (5, 1), (1, 1), (4, 3)])
def test_static_schedule(block_length, steps):
    """The block is full after exactly `denoising_steps` steps, larger shares first."""
    rule = RevealRule("low_confidence_static", block_length, steps, 0.9)
    state = state_of([True] * block_length)
    shares = []
    while state.masked.any():
        before = int(state.masked.sum())
        state = rule.apply(proposal_of([0.5] * block_length), state)
        shares.append(before - int(state.masked.sum()))
    assert len(shares) == steps
    assert shares == sorted(shares, reverse=True)
    assert max(shares) - min(shares) <= 1
    assert state.ids.tolist() == [list(range(100, 100 + block_length))]
    assert state.step.tolist() == [steps]


@pytest.mark.parametrize("strategy", RULES)
def test_ties_in_a_long_block(strategy):
    """Sorts that are not stable show it from 17 values on."""
    masked = [place % 3 != 0 for place in range(48)]
    found = RevealRule(strategy, 48, 6, 0.5).positions(proposal_of([0.5] * 48), state_of(masked))
    count = 1 if strategy == "entropy_bounded" else 8
    assert found[0].nonzero().flatten().tolist() == [place for place, m in enumerate(masked) if m][:count]


def test_full_states_stay():
    state = state_of([False, False], step=2)
    rule = RevealRule("low_confidence_dynamic", 2, 2, 0.0)
    after = rule.apply(proposal_of([1.0, 1.0]), state)
    assert after.ids.tolist() == [[0, 1]]
    assert after.step.tolist() == [2]


def test_write():
    state = State(
        torch.tensor([[1, 2, 3], [4, 5, 6]]),
        torch.tensor([[True, True, False], [False, False, False]]),
        torch.tensor([3, 3]),
    )
    positions = torch.tensor([[True, False, False], [False, False, False]])
    after = write(state, torch.full((2, 3), 9), positions)
    assert after.ids.tolist() == [[9, 2, 3], [4, 5, 6]]
    assert after.masked.tolist() == [[False, True, False], [False, False, False]]
    assert after.step.tolist() == [4, 3]
    assert state.ids.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_candidates_are_rows_to_the_rule():
    """(rows, candidates) states give what each gives alone."""
    torch.manual_seed(0)
    rule = RevealRule("low_confidence_dynamic", 5, 3, 0.6)
    masked = torch.rand(3, 4, 5) > 0.4
    states = State(torch.zeros(3, 4, 5, dtype=torch.long), masked, torch.randint(0, 4, (3, 4)))
    proposal = Proposal(torch.randint(0, 9, (3, 4, 5)), *(torch.rand(3, 4, 5) for _ in range(3)))
    found = rule.apply(proposal, states)
    for candidate in range(4):
        alone = rule.apply(
            Proposal(*(part[:, candidate] for part in proposal)), State(*(s[:, candidate] for s in states))
        )
        picked = found.pick(torch.full((3,), candidate))
        assert all(torch.equal(a, b) for a, b in zip(alone, picked, strict=True))


def test_stack_and_pick():
    first, second = state_of([True, False], 1), state_of([False, True], 2)
    stacked = State.stack([first, second])
    assert stacked.ids.shape == (1, 2, 2)
    for number, state in enumerate((first, second)):
        assert all(torch.equal(a, b) for a, b in zip(stacked.pick(torch.tensor([number])), state, strict=True))
