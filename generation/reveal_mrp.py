"""Reveal rules: which masked positions of a block are written in one denoising step.

A rule is a deterministic function of confidences, state and step, the same in every mode: that is why drafts can be
verified by applying it again.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Strategy = Literal["low_confidence_static", "low_confidence_dynamic", "sequential", "entropy_bounded", "random"]
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
    """What a rule chooses from; what stands at positions that are not masked has no meaning."""

    tokens: Tensor  # (..., block_length): the token that each masked position would get
    confidence: Tensor  # (..., block_length): its probability
    entropy: Tensor | None = (
        None  # (..., block_length): of the position's whole distribution, where the rule asks for it
    )
    lot: Tensor | None = None  # (..., block_length): uniform noise, where the rule asks for it


@dataclass(frozen=True)
class RevealRule:
    """One application of the rule reveals, of `block_length` positions in `denoising_steps` steps,

    - ``low_confidence_static``: the n most confident masked positions; with a `tie_ceiling`, confidences above it are
      equal, so that of all sure positions the leftmost come first, whatever their confidences are in detail;
    - ``sequential``: the n leftmost masked positions;
    - ``random``: n masked positions by lot;
    - ``low_confidence_dynamic``: every masked position whose confidence is above `confidence_threshold`, or the n most
      confident where fewer are;
    - ``entropy_bounded``: by ascending entropy, as many as have, without the largest, a sum of at most `entropy_bound`,
      and one at least (arXiv 2505.24857; in this form in transformers' DiffusionGemma).

    n is ``block_length // denoising_steps``, one more in the first ``block_length % denoising_steps`` steps (as in
    SDAR's and LLaDA's generate.py). Ties go to the lowest position.
    """

    strategy: Strategy
    block_length: int
    denoising_steps: int
    confidence_threshold: float
    entropy_bound: float = 0.1
    tie_ceiling: float | None = None

    def positions(self, proposal: Proposal, state: State) -> Tensor:
        """The positions to reveal, as a boolean tensor of the state's shape (..., block_length)."""
        share, extra = divmod(self.block_length, self.denoising_steps)
        count = (share + (state.step < extra).long()).unsqueeze(-1)
        if self.strategy == "entropy_bounded":
            assert proposal.entropy is not None
            return _smallest_within(proposal.entropy, state.masked, self.entropy_bound)
        first = state.masked & (_rank(self.priority(proposal, state)) < count)
        if self.strategy != "low_confidence_dynamic":
            return first
        above = state.masked & (proposal.confidence > self.confidence_threshold)
        return torch.where(above.sum(-1, keepdim=True) >= count, above, first | above)

    def priority(self, proposal: Proposal, state: State) -> Tensor:
        """What a step takes the largest of (..., block_length); minus infinity at positions that are not masked."""
        if self.strategy == "sequential":
            priority = (
                -torch.arange(state.masked.shape[-1], device=state.masked.device).float().expand(state.masked.shape)
            )
        elif self.strategy == "random":
            assert proposal.lot is not None
            priority = proposal.lot
        elif self.strategy == "entropy_bounded":
            assert proposal.entropy is not None
            priority = -proposal.entropy
        else:
            priority = proposal.confidence
            if self.tie_ceiling is not None and self.strategy == "low_confidence_static":
                priority = priority.clamp(max=self.tie_ceiling)
        return priority.masked_fill(~state.masked, -torch.inf)

    def apply(self, proposal: Proposal, state: State) -> State:
        """The state after one step. A state without masks stays as it is, its step included."""
        return write(state, proposal.tokens, self.positions(proposal, state))


def _rank(priority: Tensor) -> Tensor:
    """Each position's place in descending order of `priority` (..., positions), the lower position first of equals."""
    order = priority.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def _smallest_within(entropy: Tensor, masked: Tensor, bound: float) -> Tensor:
    """The longest run of masked positions, by ascending entropy, whose entropies but the largest sum to `bound`."""
    entropy = entropy.masked_fill(~masked, torch.inf)
    ascending, order = entropy.sort(dim=-1, stable=True)
    before = torch.cat([torch.zeros_like(ascending[..., :1]), ascending[..., :-1].cumsum(-1)], dim=-1)
    return masked & torch.empty_like(masked).scatter_(-1, order, before <= bound)


def write(state: State, tokens: Tensor, positions: Tensor) -> State:
    """`state` with `tokens` written at `positions`, one step later where anything was masked."""
    return State(
        torch.where(positions, tokens, state.ids),
        state.masked & ~positions,
        state.step + state.masked.any(-1).long(),
    )
