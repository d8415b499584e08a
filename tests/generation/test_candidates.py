"""The candidate graph: what is taken, in which order, and how the walk goes through it."""

import itertools
import random

import pytest
import torch

from mrp_hf import MRPForDiffusionLM
from mrp_hf.generation.candidates_mrp import MOST_POSITIONS, Candidates, Lattice, _best_first, _visits, _weights, grow
from mrp_hf.generation.reveal_mrp import State

from ..families import exact_dtype, write_checkpoint
from .helpers import EOS, RULES, answers, counts, draw_prompt, run, set_head

RAGGED = [draw_prompt(length) for length in (5, 1, 12, 8)]


def visits_by_enumeration(weights, others, depth):
    """Probability that a walk visits each set of positions: the sum over all orders of single reveals."""
    count = len(weights)
    found = dict.fromkeys(range(2**count), 0.0)
    for size in range(min(depth, count) + 1):
        for order in itertools.permutations(range(count), size):
            left, probability = sum(weights) + others, 1.0
            for position in order:
                probability *= weights[position] / left
                left -= weights[position]
            found[sum(2**position for position in order)] += probability
    return [found[subset] for subset in range(2**count)]


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_visits_are_sums_over_all_orders(depth):
    generator = random.Random(depth)
    rows = [[generator.random() for _ in range(5)] for _ in range(4)]
    others = [0.0, 0.1, 1.0, 3.0]
    top = torch.tensor(rows, dtype=torch.float64)
    total = top.sum(-1) + torch.tensor(others, dtype=torch.float64)
    found = _visits(Lattice.of(5, top.device), top, total, depth)
    for row in range(4):
        expected = visits_by_enumeration(rows[row], others[row], depth)
        assert found[row].tolist() == pytest.approx(expected, abs=1e-8)


def test_taken_are_the_most_visited_of_those_behind_a_taken_one():
    lattice = Lattice.of(4, torch.device("cpu"))
    visits = torch.rand(50, 16, generator=torch.Generator().manual_seed(0))
    taken = _best_first(lattice, visits, 9)
    for row, numbers in enumerate(taken.tolist()):
        assert numbers[0] == 0
        assert len(set(numbers)) == len(numbers) == 10
        for place in range(1, 10):
            before = numbers[:place]
            open_ones = {s | 2**b for s in before for b in range(4)} - set(before)
            assert visits[row, numbers[place]] == max(visits[row, s] for s in open_ones)


def test_weights_are_powers_of_odds():
    confidence = torch.tensor([[0.9, 0.5, 0.0, 0.99]])
    masked = torch.tensor([[True, True, True, False]])
    weights = _weights(confidence, masked)[0]
    assert weights[0] == 1
    assert weights[2] == weights[3] == 0
    assert 0 < weights[1] < 1
    assert (_weights(confidence, ~masked)[0] == torch.tensor([0.0, 0.0, 0.0, 1.0])).all()
    assert (_weights(confidence, torch.zeros_like(masked)) == 0).all()


def test_candidates_hold_drafted_tokens_at_revealed_places_only():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 9, (6, 5), generator=generator)
    masked = torch.rand(6, 5, generator=generator) > torch.tensor([0.0, 0.2, 0.5, 0.7, 0.9, 1.0])[:, None]
    root = State(ids.masked_fill(masked, 23), masked, torch.arange(6))
    tokens = torch.randint(10, 20, (6, 5), generator=generator)
    grown = grow(root, tokens, torch.rand(6, 5, generator=generator) * masked, 12, 3)
    for row in range(6):
        seen = set()
        for number in range(grown.valid.shape[1]):
            state = State(*(part[row, number] for part in grown.states))
            if number == 0:
                assert torch.equal(state.ids, root.ids[row])
            if not grown.valid[row, number]:
                continue
            revealed = masked[row] & ~state.masked
            assert int(revealed.sum()) == int(grown.depth[row, number]) <= 3
            assert int(state.step) == row + int(revealed.sum())
            assert torch.equal(state.ids, torch.where(revealed, tokens[row], root.ids[row]))
            seen.add(tuple(state.ids.tolist()))
        assert len(seen) == int(grown.valid[row].sum())
        # Every state within reach is there if the budget allows: 1 + n + n (n - 1) / 2 + ...
        n = int(masked[row].sum())
        within = sum(len(list(itertools.combinations(range(n), size))) for size in range(4))
        assert len(seen) == min(12, within)


def test_walk_follows_the_backbone_through_any_order():
    """Against a walk in python, over random graphs with repeated ids, false parents and padding."""
    generator = random.Random(0)
    for _ in range(300):
        number = generator.randrange(1, 7)
        ids = [[generator.randrange(2) for _ in range(2)] for _ in range(number)]
        depth = [0, *sorted(generator.randrange(1, 4) for _ in range(number - 1))]
        valid = [True, *(generator.random() < 0.8 for _ in range(number - 1))]
        after = [[generator.randrange(2) for _ in range(2)] for _ in range(number)]
        at = 0
        while True:
            onward = [n for n in range(number) if valid[n] and ids[n] == after[at] and depth[n] == depth[at] + 1]
            if not onward:
                break
            at = onward[0]
        none, steps = torch.zeros(1, number, 2, dtype=torch.bool), torch.zeros(1, number)
        graph = Candidates(State(torch.tensor([ids]), none, steps), torch.tensor([valid]), torch.tensor([depth]))
        assert graph.walk(State(torch.tensor([after]), none, steps)).tolist() == [at]


@pytest.mark.parametrize("head", ["random", "constant", "ends", "huge"])
@pytest.mark.parametrize("num_candidates", [1, 2, 5, 16])
def test_lossless(small_model, num_candidates, head):
    model = set_head(small_model(seed=3), head)
    for rule, block_length, sampled in itertools.product(RULES, (1, 4, 9), (False, True)):
        fields = {"remasking_strategy": rule, "block_length": block_length, "max_new_tokens": 13, "eos_token_id": EOS}
        fields |= {"do_sample": sampled, "confidence_threshold": 0.3}
        plain = run(model, RAGGED, **fields)
        for drafter in ("head", "backbone"):
            speculative = run(
                model,
                RAGGED,
                mrp_mode="speculative",
                mrp_drafter=drafter,
                mrp_num_candidates=num_candidates,
                **fields,
            )
            assert answers(speculative) == answers(plain)
            for row in range(len(RAGGED)):
                before, seen = counts(plain, row), counts(speculative, row)
                assert seen["verify"] + seen["denoise"] <= before["denoise"]
                assert all(a <= p for a, p in zip(seen["accepted"], seen["proposed"], strict=True))


@pytest.mark.parametrize("family", ["llada", "Dream", "Fast_dLLM_Qwen"])
def test_lossless_for_other_backbones(tmp_path, family):
    model = MRPForDiffusionLM.from_backbone(write_checkpoint(family, 0, tmp_path), dtype=exact_dtype(family))
    fields = {"max_new_tokens": 9, "remasking_strategy": "low_confidence_static"}
    plain = run(model, RAGGED, **fields)
    for drafter in ("head", "backbone"):
        speculative = run(model, RAGGED, mrp_mode="speculative", mrp_drafter=drafter, mrp_num_candidates=8, **fields)
        assert answers(speculative) == answers(plain)


def test_depth_is_limited_by_the_lookahead_steps(small_model):
    fields = {"mrp_mode": "speculative", "mrp_drafter": "backbone", "mrp_num_candidates": 16, "max_new_tokens": 12}
    free = run(small_model(seed=5, block_length=8), [draw_prompt(4)], **fields)
    assert len(counts(free)["proposed"]) == MOST_POSITIONS
    limited = run(small_model(seed=5, block_length=8), [draw_prompt(4)], mrp_num_lookahead_steps=2, **fields)
    assert len(counts(limited)["proposed"]) == 2
    assert answers(limited) == answers(free)
