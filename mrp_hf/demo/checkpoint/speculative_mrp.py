"""Speculative decoding: draft the next states, verify them all in one packed backbone forward. Lossless."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .denoiser_mrp import Denoiser
from .reveal_mrp import State


def decode_speculative(denoiser: Denoiser, lookahead_steps: int, draft_with_head: bool) -> Iterator[None]:
    """Denoise exactly as plain decoding does, in fewer forwards; yields after every round.

    1. One backbone forward over the packed candidates: a certain state and the states drafted behind it.
    2. Walk: while the rule, applied to the backbone's logits at a candidate, gives the next candidate, go on. Each row
       walks on its own.
    3. The rule at the last candidate reached gives the row's next state, which is certain whatever was drafted.
    4. A candidate that was reached without masks leaves its keys and values in the cache.
    5. Draft K states behind the certain one. A row that has just entered a block has nothing to draft from yet: its
       only candidate is the masked block itself.

    Every step is one that plain decoding makes too, so the output is the same for any drafter.
    """
    rows = denoiser.rows
    candidates, valid = _fresh(rows.state())
    while rows.active.any():
        hidden = denoiser.backbone(candidates, valid)
        following = denoiser.reveal(candidates, hidden)
        reached = _walk(candidates, following, valid)
        denoiser.stats.drafts_proposed[:, : valid.shape[1] - 1] += valid[:, 1:] & rows.active[:, None]
        depths = torch.arange(1, valid.shape[1], device=valid.device)
        denoiser.stats.drafts_accepted[:, : valid.shape[1] - 1] += (depths <= reached[:, None]) & rows.active[:, None]

        reached_full = ~candidates.pick(reached).masked.any(-1) & rows.active
        reached_hidden = hidden[torch.arange(len(rows), device=reached.device), reached]
        denoiser.keep(reached, reached_full)
        block_before = rows.block
        rows.advance(following.pick(reached))
        yield
        drafting = (rows.block == block_before) & rows.active
        candidates, valid = _draft(denoiser, reached_hidden, drafting, lookahead_steps, draft_with_head)


def _fresh(state: State) -> tuple[State, Tensor]:
    """The current blocks as the only candidates."""
    return State.stack([state]), torch.ones_like(state.step, dtype=torch.bool)[:, None]


def _walk(candidates: State, following: State, valid: Tensor) -> Tensor:
    """The number (rows,) of the last candidate that the backbone's own choices lead to."""
    agrees = (following.ids[:, :-1] == candidates.ids[:, 1:]).all(-1) & valid[:, 1:]
    return agrees.long().cumprod(-1).sum(-1)


def _draft(
    denoiser: Denoiser, hidden: Tensor, drafting: Tensor, lookahead_steps: int, draft_with_head: bool
) -> tuple[State, Tensor]:
    """A chain of K drafts behind each row's certain state, in the rows that are `drafting` (rows,).

    Without the head a draft is the next-best pick of the same logits A.
    """
    state = denoiser.rows.state()
    chain, valid = [state], [torch.ones_like(drafting)]
    for _ in range(lookahead_steps):
        # Nothing follows a full state, and a row that drafts nothing must not steer the others.
        state = State(state.ids, state.masked & drafting[:, None], state.step)
        open_rows = state.masked.any(-1)
        if not open_rows.any():
            break
        if draft_with_head:
            hidden = denoiser.head(state, hidden)
        state = denoiser.reveal(state, hidden)
        chain.append(state)
        valid.append(open_rows)
    return State.stack(chain), torch.stack(valid, dim=1)
