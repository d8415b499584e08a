"""Every attention mask and every position is built here, from one rule.

Each token carries a *copy* and a *block*. Copy 0 is the clean text; every other copy holds some denoising state of some
blocks: a noisy training copy, the block being decoded, a speculative candidate. Copies with other numbers never see
each other. The rule, for block-causal backbones (SDAR, arXiv 2510.06303; block diffusion, arXiv 2503.09573):

    a token sees the clean copy's earlier blocks, and its own block in its own copy.

A copy may stand behind another one instead of behind the clean text alone: the next block's masks behind a candidate
that may turn out to finish the block before. It sees that copy's earlier blocks as well.

Several documents in one row need no further rule: number their blocks consecutively and let `first_block` say where a
token's own document starts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

CLEAN = 0
PADDING = -1


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean (batch, queries, keys) mask into an additive (batch, 1, queries, keys) mask of `dtype`.

    Boolean masks are not used because eager attention *adds* whatever mask it is given.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)


def block_causal_visibility(
    query_copy: Tensor,
    query_block: Tensor,
    key_copy: Tensor | None = None,
    key_block: Tensor | None = None,
    behind: Tensor | None = None,
) -> Tensor:
    """Which keys each query sees, as a boolean tensor (batch, queries, keys).

    Args:
        query_copy, query_block (`Tensor` of shape (batch, queries)): copy and block number of each query.
        key_copy, key_block (`Tensor` of shape (batch, keys), *optional*): the same of the keys; default the queries'.
        behind (`Tensor` of shape (batch, queries), *optional*): the copy that each query's copy stands behind; `CLEAN`
            for none.

    Padding has copy and block `PADDING`: no real token sees it, and it sees padding alone, itself at least, so that
    no softmax row is empty.
    """
    key_copy = query_copy if key_copy is None else key_copy
    key_block = query_block if key_block is None else key_block
    query_copy, query_block = query_copy.unsqueeze(-1), query_block.unsqueeze(-1)
    key_copy, key_block = key_copy.unsqueeze(-2), key_block.unsqueeze(-2)
    before = key_copy == CLEAN
    if behind is not None:
        before = before | (key_copy == behind.unsqueeze(-1))
    own_block = (key_copy == query_copy) & (key_block == query_block)
    return (before & (key_block < query_block)) | own_block


def bidirectional_visibility(real: Tensor) -> Tensor:
    """Every real token sees every real one, as a boolean tensor (batch, queries, keys): the rule with one block.

    Args:
        real (`Tensor` of shape (batch, length)): False at padding.
    """
    copies = torch.where(real, CLEAN, PADDING)
    return block_causal_visibility(copies, copies)


def blocks_of(copies: Tensor, position_ids: Tensor, block_length: int) -> Tensor:
    """Block number of each token, of the shape of `copies`: blocks count from position 0, padding is in none."""
    return torch.where(copies == PADDING, PADDING, position_ids // block_length)


class Packing(NamedTuple):
    """Where the tokens of a packed forward stand: ``[clean tokens not cached | candidate 1 | ... | next block]``."""

    clean_columns: Tensor  # (rows, width): positions of the clean tokens; padded at the end
    clean_lengths: Tensor  # (rows,): how many of them are real
    position_ids: Tensor  # (rows, queries)
    attention_mask: Tensor  # (rows, 1, queries, keys), additive


def pack_candidates(
    cached: Tensor,
    finished: Tensor,
    state_positions: Tensor,
    valid: Tensor,
    dtype: torch.dtype,
    full: Tensor | None = None,
) -> Packing:
    """Positions and mask of a forward that reads a cache and packs several candidates of each row's current block.

    The forward's keys lie in the cache behind each row's own cached length, so key column j of a row is position j
    while j is below that length and query j - length from there on.

    Args:
        cached (`Tensor` of shape (rows,)): tokens whose keys and values the cache holds.
        finished (`Tensor` of shape (rows,)): tokens in finished blocks; those beyond `cached` ride along.
        state_positions (`Tensor` of shape (rows, block_length)): positions of the current block.
        valid (`Tensor` of shape (rows, candidates)): candidates that are real; the others become padding.
        dtype (`torch.dtype`): dtype of the mask.
        full (`Tensor` of shape (rows,), *optional*): number of a candidate without masks, -1 for none: the next block
            is packed too, behind that candidate.
    """
    rows, candidates = valid.shape
    block_length = state_positions.shape[1]
    positions = state_positions.repeat(1, candidates)
    behind = torch.full_like(valid, CLEAN, dtype=torch.long)
    if full is not None:
        positions = torch.cat([positions, state_positions + block_length], dim=1)
        valid = torch.cat([valid, (full >= 0)[:, None]], dim=1)
        behind = torch.cat([behind, full.clamp(min=0)[:, None] + 1], dim=1)
    clean_lengths = finished - cached
    width = int(clean_lengths.max())
    clean_columns = cached[:, None] + torch.arange(width, device=cached.device)
    clean_real = clean_columns < finished[:, None]

    position_ids = torch.cat([clean_columns, positions], dim=1)
    own_copy = torch.arange(1, valid.shape[1] + 1, device=cached.device).where(valid, PADDING)
    copies = torch.cat(
        [torch.where(clean_real, CLEAN, PADDING), own_copy.repeat_interleave(block_length, dim=1)], dim=1
    )
    blocks = blocks_of(copies, position_ids, block_length)

    columns = torch.arange(int(cached.max()) + copies.shape[1], device=cached.device).expand(rows, -1)
    cached_copies = torch.where(columns < cached[:, None], CLEAN, PADDING)
    written = cached[:, None] + torch.arange(copies.shape[1], device=cached.device)
    key_copies = cached_copies.scatter(1, written, copies)
    key_blocks = blocks_of(cached_copies, columns, block_length).scatter(1, written, blocks)
    behind = torch.cat([torch.full_like(clean_columns, CLEAN), behind.repeat_interleave(block_length, dim=1)], dim=1)
    visible = block_causal_visibility(copies, blocks, key_copies, key_blocks, behind)
    return Packing(clean_columns, clean_lengths, position_ids, additive(visible, dtype))
