"""Reveal rules: which masked positions of a block are written in one denoising step.

A rule is a deterministic function of confidences, state and step, the same in every mode: that is why drafts can be
verified by applying it again.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Strategy = Literal["low_confidence_static", "low_confidence_dynamic", "sequential"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)


class State(NamedTuple):
    """Denoising states of blocks; the leading dimensions are (rows,) or (rows, candidates).

    `masked` says which places are still to fill. It is kept apart from `ids` because a prompt may contain the mask
    token as text. `step` counts the rule's applications in the block so far.
    """

    ids: Tensor  # (..., block_length)
    masked: Tensor  # (..., block_length), bool
    step: Tensor  # (...,)

    def pick(self, candidate: Tensor) -> "State":
        """The state number `candidate` (rows,) of each row of a (rows, candidates) state."""
        rows = torch.arange(len(candidate), device=candidate.device)
        return State(*(part[rows, candidate] for part in self))

    @staticmethod
    def stack(states: "list[State]") -> "State":
        """States of shape (rows, candidates) from one state of shape (rows,) per candidate."""
        return State(*(torch.stack(parts, dim=1) for parts in zip(*states, strict=True)))


class Proposal(NamedTuple):
    """For every masked position the token it would get and the confidence in it; confidence is -1 elsewhere."""

    tokens: Tensor  # (..., block_length)
    confidence: Tensor  # (..., block_length)


@dataclass(frozen=True)
class RevealRule:
    """One application of the rule reveals, of `block_length` positions in `denoising_steps` steps,

    - ``low_confidence_static``: the n most confident masked positions;
    - ``sequential``: the n leftmost masked positions;
    - ``low_confidence_dynamic``: every masked position whose confidence is above `confidence_threshold`, or the n most
      confident where fewer are.

    n is ``block_length // denoising_steps``, one more in the first ``block_length % denoising_steps`` steps (as in
    SDAR's and LLaDA's generate.py). Ties go to the lowest position.
    """

    strategy: Strategy
    block_length: int
    denoising_steps: int
    confidence_threshold: float

    def positions(self, proposal: Proposal, state: State) -> Tensor:
        """The positions to reveal, as a boolean tensor of the state's shape (..., block_length)."""
        share, extra = divmod(self.block_length, self.denoising_steps)
        count = (share + (state.step < extra).long()).unsqueeze(-1)
        if self.strategy == "sequential":
            return state.masked & (state.masked.cumsum(-1) <= count)
        confidence = proposal.confidence.masked_fill(~state.masked, -1.0)
        order = confidence.argsort(dim=-1, descending=True, stable=True)
        ranks = torch.arange(order.shape[-1], device=order.device).expand_as(order)
        surest = state.masked & (torch.empty_like(order).scatter_(-1, order, ranks) < count)
        if self.strategy == "low_confidence_static":
            return surest
        above = state.masked & (confidence > self.confidence_threshold)
        return torch.where(above.sum(-1, keepdim=True) >= count, above, surest | above)

    def apply(self, proposal: Proposal, state: State) -> State:
        """The state after one step. A state without masks stays as it is, its step included."""
        return write(state, proposal.tokens, self.positions(proposal, state))


def write(state: State, tokens: Tensor, positions: Tensor) -> State:
    """`state` with `tokens` written at `positions`, one step later where anything was masked."""
    return State(
        torch.where(positions, tokens, state.ids),
        state.masked & ~positions,
        state.step + state.masked.any(-1).long(),
    )
