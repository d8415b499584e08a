"""Speculative decoding: draft the next states, verify them all in one packed backbone forward. Lossless."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .candidates_mrp import Candidates, grow
from .denoiser_mrp import Denoiser
from .reveal_mrp import State


def decode_speculative(
    denoiser: Denoiser, lookahead_steps: int, draft_with_head: bool, num_candidates: int | None = None
) -> Iterator[None]:
    """Denoise exactly as plain decoding does, in fewer forwards; yields after every round.

    1. One backbone forward over the packed candidates: a certain state and the states drafted behind it.
    2. Walk: while the rule, applied to the backbone's logits at a candidate, gives another candidate, go on to it. Each
       row walks on its own.
    3. The rule at the last candidate reached gives the row's next state, which is certain whatever was drafted.
    4. A candidate that was reached without masks leaves its keys and values in the cache, and the next block, packed
       behind it, has had its first forward.
    5. Draft behind the certain state: a chain of K states, or a graph of `num_candidates`. A row that has just entered
       a block without that forward has nothing to draft from yet: its only candidate is the masked block itself.

    Every step is one that plain decoding makes too, so the output is the same for any drafter.
    """
    rows = denoiser.rows
    # A graph guesses the order of single reveals. Where the rule reveals several at once, or its order is no guess, a
    # chain says it all.
    as_graph = num_candidates is not None and denoiser.order_is_a_guess
    state = rows.state()
    candidates = Candidates.chain([state], [torch.ones_like(state.step, dtype=torch.bool)])
    while rows.active.any():
        hidden = denoiser.backbone(candidates.states, candidates.valid)
        following = denoiser.reveal(candidates.states, hidden)
        reached = candidates.walk(following)
        _count(denoiser, candidates, reached)

        every = torch.arange(len(rows), device=reached.device)
        reached_full = ~candidates.states.pick(reached).masked.any(-1) & rows.active
        reached_hidden = hidden[every, reached]
        denoiser.keep(reached, reached_full)
        block_before = rows.block
        rows.advance(following.pick(reached))
        entered = reached_full & rows.active
        next_hidden = denoiser.next_block(reached_hidden) if entered.any() else None
        if next_hidden is not None:
            block_before = torch.where(entered, rows.block, block_before)
            places = (-1, *(1,) * (next_hidden.ndim - 1))
            reached_hidden = torch.where(entered.view(places), next_hidden, reached_hidden)
            _first_step(denoiser, entered, reached_hidden)
        yield
        drafting = (rows.block == block_before) & rows.active
        if as_graph:
            assert num_candidates is not None
            candidates = _draft_graph(
                denoiser, reached_hidden, drafting, num_candidates, lookahead_steps, draft_with_head
            )
        else:
            steps = lookahead_steps if num_candidates is None else num_candidates - 1
            candidates = _draft_chain(denoiser, reached_hidden, drafting, steps, draft_with_head)


def _first_step(denoiser: Denoiser, entered: Tensor, hidden: Tensor) -> None:
    """The first step of the blocks that rows have `entered` (rows,), from hidden states that are there already."""
    state = denoiser.rows.state()
    first = denoiser.reveal(State(state.ids, state.masked & entered[:, None], state.step), hidden)
    denoiser.rows.advance(State(first.ids, torch.where(entered[:, None], first.masked, state.masked), first.step))


def _draft_chain(
    denoiser: Denoiser, hidden: Tensor, drafting: Tensor, lookahead_steps: int, draft_with_head: bool
) -> Candidates:
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
    return Candidates.chain(chain, valid)


def _draft_graph(
    denoiser: Denoiser, hidden: Tensor, drafting: Tensor, num_candidates: int, depth: int, draft_with_head: bool
) -> Candidates:
    """The likeliest states behind each row's certain state, from one look at its masked positions.

    With the head that look is one lookahead step; without it, the logits A from before the certain state.
    """
    root = denoiser.rows.state()
    state = State(root.ids, root.masked & drafting[:, None], root.step)
    if not state.masked.any():
        return Candidates.chain([root], [torch.ones_like(drafting)])
    if draft_with_head:
        hidden = denoiser.head(state, hidden)
    proposal = denoiser.propose(state, hidden)
    confidence = proposal.confidence.masked_fill(~state.masked, 0.0)
    return grow(root, proposal.tokens, confidence, num_candidates, depth)


def _count(denoiser: Denoiser, candidates: Candidates, reached: Tensor) -> None:
    """Drafts proposed and accepted by depth: a depth counts once, however many candidates stand there."""
    depths = torch.arange(1, denoiser.stats.drafts_proposed.shape[1] + 1, device=reached.device)
    active = denoiser.rows.active[:, None]
    proposed = (candidates.depth[:, :, None] == depths) & candidates.valid[:, :, None]
    denoiser.stats.drafts_proposed += proposed.any(1) & active
    reached_depth = candidates.depth.gather(1, reached[:, None])
    denoiser.stats.drafts_accepted += (depths <= reached_depth) & active
