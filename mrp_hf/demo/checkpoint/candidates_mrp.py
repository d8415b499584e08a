"""The candidate graph: which states to verify in one packed forward, and the walk through them.

Drafts fail mostly by order: the backbone reveals another position next than the drafter thought, not another token. Two
orders of the same reveals meet in one state. So the candidates are not a chain but the states of a small graph: the
certain state, and subsets of the likeliest next reveals on top of it, best first by the probability that the backbone's
walk visits them. A chain is the graph in which each state has one follower.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .reveal_mrp import State

# How sharply the next position follows from the drafter's confidences: the exponent of their odds in a Plackett-Luce
# model of the order of reveals. Of 0.3, 0.6, 1.0 and 1.6 the one with most tokens per forward at 8 and 16 candidates on
# the demo model's validation problems.
SHARPNESS = 1.0
MOST_POSITIONS = 7  # positions that subsets are formed of: 2**7 of them are scored


class Candidates(NamedTuple):
    """States to verify, the certain one first.

    Attributes:
        states (`State` of shape (rows, candidates)).
        valid (`Tensor` of shape (rows, candidates)): candidates that are real.
        depth (`Tensor` of shape (rows, candidates)): steps from the certain state.
    """

    states: State
    valid: Tensor
    depth: Tensor

    @staticmethod
    def chain(states: list[State], valid: list[Tensor]) -> "Candidates":
        """One state behind the other; `valid` has a tensor (rows,) for each."""
        depth = torch.arange(len(states), device=valid[0].device).expand(len(valid[0]), -1)
        return Candidates(State.stack(states), torch.stack(valid, dim=1), depth)

    def walk(self, following: State) -> Tensor:
        """The number (rows,) of the last candidate that the backbone's own choices lead to from the certain one.

        Args:
            following (`State` of shape (rows, candidates)): the state after one step from each candidate.
        """
        # A state's identity is its ids: whatever order led there, the backbone goes on from it in the same way.
        same = (following.ids[:, :, None] == self.states.ids[:, None]).all(-1)
        leads_to = same & self.valid[:, None] & (self.depth[:, None] == self.depth[:, :, None] + 1)
        rows = torch.arange(len(self.valid), device=self.valid.device)
        reached = torch.zeros_like(rows)
        for _ in range(int(self.depth.shape[1]) - 1):
            onward = leads_to[rows, reached]
            reached = torch.where(onward.any(-1), onward.int().argmax(-1), reached)
        return reached


@dataclass(frozen=True)
class Lattice:
    """Tables over the subsets of m positions, numbered by their bits.

    Attributes:
        members (`Tensor` of shape (2**m, m)): bool, which positions a subset holds.
        children (`Tensor` of shape (2**m, m)): the subset with one position more; itself where it holds it already.
        levels: for each size s, (subset, position, child) of every way from a subset of that size, as (3, ways).
    """

    members: Tensor
    children: Tensor
    levels: tuple[Tensor, ...]

    @staticmethod
    @cache
    def of(positions: int, device: torch.device) -> "Lattice":
        subsets = torch.arange(2**positions, device=device)
        bits = 2 ** torch.arange(positions, device=device)
        members = (subsets[:, None] & bits) > 0
        children = subsets[:, None] | bits
        sizes = members.sum(-1)
        levels = []
        for size in range(positions):
            subset, position = ((sizes == size)[:, None] & ~members).nonzero(as_tuple=True)
            levels.append(torch.stack([subset, position, children[subset, position]]))
        return Lattice(members, children, tuple(levels))


def grow(root: State, tokens: Tensor, confidence: Tensor, budget: int, depth: int) -> Candidates:
    """The certain states and the likeliest states behind them, for rules that reveal one position a step.

    Args:
        root (`State` of shape (rows,)): the certain states.
        tokens (`Tensor` of shape (rows, block_length)): the drafted token of each masked position.
        confidence (`Tensor` of shape (rows, block_length)): by which the next position is foreseen; 0 at positions that
            cannot be next.
        budget (`int`): candidates a row, the certain one included.
        depth (`int`): most steps from the certain state.

    The probability that the next reveal is at a position is taken to be proportional to the odds of its confidence, to
    the power of `SHARPNESS`, among the positions still masked. Subsets are taken best first by the probability that a
    walk from the root visits them, each behind one that is taken already.
    """
    rows, block_length = root.ids.shape
    positions = min(MOST_POSITIONS, block_length)
    lattice = Lattice.of(positions, root.ids.device)
    weights = _weights(confidence, root.masked)
    top, place = weights.topk(positions, dim=-1)
    visits = _visits(lattice, top, weights.sum(-1), depth)
    taken = _best_first(lattice, visits, budget - 1)

    members = lattice.members[taken] & (top > 0)[:, None]
    revealed = torch.zeros(rows, taken.shape[1], block_length, dtype=torch.bool, device=root.ids.device)
    revealed.scatter_(-1, place[:, None].expand(-1, taken.shape[1], -1), members)
    states = State(
        torch.where(revealed, tokens[:, None], root.ids[:, None]),
        root.masked[:, None] & ~revealed,
        root.step[:, None] + revealed.sum(-1),
    )
    valid = (visits.gather(1, taken) > 0) & (taken > 0)
    valid[:, 0] = True
    return Candidates(states, valid, revealed.sum(-1))


def _weights(confidence: Tensor, masked: Tensor) -> Tensor:
    """Plackett-Luce weights (rows, positions), 0 where nothing is masked; the largest of a row is 1."""
    odds = torch.special.logit(confidence.float(), eps=1e-6) * SHARPNESS
    possible = masked & (confidence > 0)
    odds = odds.masked_fill(~possible, -torch.inf)
    largest = odds.amax(-1, keepdim=True)
    return (odds - largest.masked_fill(largest == -torch.inf, 0.0)).exp().masked_fill(~possible, 0.0)


def _visits(lattice: Lattice, top: Tensor, total: Tensor, depth: int) -> Tensor:
    """Probability (rows, subsets) that a walk visits each subset of the top positions within `depth` steps."""
    left = (total[:, None] - top @ lattice.members.T.to(top.dtype)).clamp(min=1e-9)
    visits = torch.zeros_like(left)
    visits[:, 0] = 1.0
    for subset, position, child in lattice.levels[:depth]:
        visits.index_add_(1, child, visits[:, subset] * top[:, position] / left[:, subset])
    return visits


def _best_first(lattice: Lattice, visits: Tensor, budget: int) -> Tensor:
    """Numbers (rows, budget + 1) of the subsets to take: the empty one, then the most visited whose parent is taken."""
    rows = torch.arange(len(visits), device=visits.device)
    open_ones = torch.full_like(visits, -1.0)
    chosen = torch.zeros_like(rows)
    taken = [chosen]
    closed = torch.zeros_like(visits, dtype=torch.bool)
    for _ in range(min(budget, visits.shape[1] - 1)):
        closed[rows, chosen] = True
        children = lattice.children[chosen]
        open_ones.scatter_(1, children, visits.gather(1, children))
        open_ones = open_ones.masked_fill(closed, -1.0)
        chosen = open_ones.argmax(-1)
        taken.append(chosen)
    return torch.stack(taken, dim=1)
