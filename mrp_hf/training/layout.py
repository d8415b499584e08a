"""Where the tokens of a training batch stand: one clean copy of each row, and noisy copies of the blocks that matter.

With a block-causal backbone a noisy copy's blocks see the clean copy's earlier blocks and themselves, never each other.
So the blocks in which nothing is supervised (the prompt's, and those that the first reveal completes) are left out: the
result is the same. With a bidirectional one a noisy copy is a whole row that sees itself, and no clean copy is read.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mrp_hf.generation.masks_mrp import (
    CLEAN,
    PADDING,
    additive,
    bidirectional_visibility,
    block_causal_visibility,
    blocks_of,
)

_NOISY = 1


class Layout(NamedTuple):
    """Positions and masks. A noisy copy has `m` columns, the tokens of each row's selected blocks."""

    clean_position_ids: Tensor  # (rows, width)
    clean_mask: Tensor | None  # (rows, 1, width, width), additive: the clean copy alone; None where there is none
    columns: Tensor  # (rows, m): where a noisy copy's tokens stand in the row, and their positions
    noisy_mask: Tensor  # (rows, 1, m, keys), additive: a noisy copy behind the clean copy's keys, or its own alone

    def gather(self, values: Tensor) -> Tensor:
        """The noisy copy's part (..., rows, m) of `values` (..., rows, width)."""
        return values.gather(-1, self.columns.expand(*values.shape[:-1], -1))


def build_layout(lengths: Tensor, supervised: Tensor, block_length: int | None, dtype: torch.dtype) -> Layout:
    """Lay out a right-padded batch.

    Args:
        lengths (`Tensor` of shape (rows,)): real tokens of each row.
        supervised (`Tensor` of shape (rows, width)): bool, the places that have a loss at some lookahead step.
        block_length (`int`, *optional*): of a block-causal backbone; `None` for a bidirectional one.
        dtype (`torch.dtype`): dtype of the masks.
    """
    rows, width = supervised.shape
    places = torch.arange(width, device=lengths.device).expand(rows, -1)
    real = places < lengths[:, None]
    if block_length is None:
        return Layout(places, None, places, additive(bidirectional_visibility(real), dtype))
    clean_copy = torch.where(real, CLEAN, PADDING)
    clean_block = blocks_of(clean_copy, places, block_length)

    needed = supervised.view(rows, -1, block_length).any(-1)
    count = max(int(needed.sum(-1).max()), 1)  # one block of padding keeps the graph whole where nothing is supervised
    order = (~needed).int().argsort(dim=-1, stable=True)[:, :count]
    columns = (order.unsqueeze(-1) * block_length + torch.arange(block_length, device=order.device)).flatten(1)
    used = needed.gather(1, order).repeat_interleave(block_length, dim=1) & (columns < lengths[:, None])
    noisy_copy = torch.where(used, _NOISY, PADDING)
    noisy_block = blocks_of(noisy_copy, columns, block_length)

    clean = block_causal_visibility(clean_copy, clean_block)
    noisy = block_causal_visibility(
        noisy_copy,
        noisy_block,
        torch.cat([clean_copy, noisy_copy], dim=1),
        torch.cat([clean_block, noisy_block], dim=1),
    )
    return Layout(places, additive(clean, dtype), columns, additive(noisy, dtype))
