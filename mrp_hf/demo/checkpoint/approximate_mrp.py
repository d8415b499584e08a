"""Denoising with a bidirectional backbone behind an approximate cache (Fast-dLLM, arXiv 2505.22618).

The first forward of each block reads the whole canvas and keeps its keys and values. Later forwards of the block
compute a window of it and read the rest as it was: not exact, because what a place saw has changed with the tokens
revealed since.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.cache_utils import Cache, CacheLayerMixin

from .bidirectional_mrp import BidirectionalDenoiser
from .masks_mrp import additive
from .protocol_mrp import DiffusionLM
from .reveal_mrp import RevealRule
from .rows_mrp import Rows
from .sampling_mrp import TokenChooser


class CanvasCacheLayer(CacheLayerMixin):
    """One layer's keys and values of whole canvases, (rows, heads, canvas, head size)."""

    is_croppable = False

    def __init__(self, owner: "CanvasCache"):
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device, self.dtype = key_states.device, key_states.dtype
        self.keys = key_states.new_zeros(self.owner.rows, *key_states.shape[1:])
        self.values = value_states.new_zeros(self.owner.rows, *value_states.shape[1:])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        row, columns = self.owner.row, self.owner.columns
        if columns is None:
            self.keys[row], self.values[row] = key_states, value_states
            return key_states, value_states
        return self._laid_over(self.keys[row], key_states, columns), self._laid_over(
            self.values[row], value_states, columns
        )

    @staticmethod
    def _laid_over(kept: Tensor, new: Tensor, columns: Tensor) -> Tensor:
        """`kept` with `new` at `columns`; columns behind the canvas are appended."""
        behind = int(columns.max()) + 1 - kept.shape[2]
        kept = F.pad(kept, (0, 0, 0, behind)) if behind > 0 else kept
        return kept.scatter(2, columns[:, None, :, None].expand_as(new), new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class CanvasCache(Cache):
    """Keys and values of whole canvases, written by forwards over canvases and read by those over windows.

    Attributes:
        row (`Tensor` of shape (n,)): the row of each canvas or window of the next forward.
        columns (`Tensor` of shape (n, width), *optional*): the windows' columns; `None` for whole canvases.
    """

    def __init__(self, num_layers: int, rows: int):
        super().__init__(layers=[CanvasCacheLayer(self) for _ in range(num_layers)])
        self.rows = rows
        self.row = torch.empty(0, dtype=torch.long)
        self.columns: Tensor | None = None


class ApproximateDenoiser(BidirectionalDenoiser):
    """As its base, with keys, values and hidden states outside a window as they were at the start of the block.

    Args:
        kind: ``"prefix"``: the window reaches from the current block to the end; ``"dual"``: it is the current block.
    """

    def __init__(
        self,
        model: DiffusionLM,
        rows: Rows,
        rule: RevealRule,
        chooser: TokenChooser,
        lookahead_steps: int,
        kind: str,
    ):
        super().__init__(model, rows, rule, chooser, lookahead_steps)
        self._kind = kind
        self._cache = CanvasCache(model.config.num_backbone_layers, len(rows))
        self._cached_block = torch.full_like(rows.block, -1)
        self._hidden: Tensor | None = None

    def next_block(self, reached_hidden: Tensor) -> Tensor | None:
        return None  # a block's first forward is the one that fills the cache

    def _compute(self, row: Tensor, ids: Tensor) -> Tensor:
        stale = self.rows.block[row] != self._cached_block[row]
        if stale.any():
            self._cache.row, self._cache.columns = row[stale], None
            canvases = self._run(row[stale], ids[stale], self._cache)
            if self._hidden is None:
                self._hidden = canvases.new_zeros(len(self.rows), *canvases.shape[1:])
            self._hidden[row[stale]] = canvases
            self._cached_block[row[stale]] = self.rows.block[row[stale]]
        assert self._hidden is not None
        hidden = self._hidden[row]
        later = (~stale).nonzero().squeeze(1)
        if len(later) > 0:
            hidden[later] = self._compute_windows(row[later], ids[later], hidden[later])
        return hidden

    def _compute_windows(self, row: Tensor, ids: Tensor, hidden: Tensor) -> Tensor:
        """`hidden` (n, canvas, hidden) with what the backbone gives for the current windows laid over it."""
        tokens = self._tokens(row, ids)
        canvas = tokens.shape[1]
        start = self.rows.positions()[row, :1]
        width = self.rows.block_length if self._kind == "dual" else canvas - int(start.min())
        columns = start + torch.arange(width, device=start.device)  # of shorter suffixes, some lie behind the canvas
        inside = columns.clamp(max=canvas - 1)
        keys = torch.arange(max(canvas, int(columns.max()) + 1), device=start.device)
        limits = self.rows.limits[row, None]
        # A place behind the row's limit sees itself, so that no softmax row is empty.
        visible = (keys < limits)[:, None, :] | (keys == columns[:, :, None])
        self._cache.row, self._cache.columns = row, columns
        window = self.model.backbone_hidden_states(
            tokens.gather(1, inside), inside, additive(visible, self.model.dtype), cache=self._cache
        )
        behind = int(columns.max()) + 1 - canvas
        padded = F.pad(hidden, (0, 0, 0, behind)) if behind > 0 else hidden
        return padded.scatter(1, columns[:, :, None].expand_as(window), window)[:, :canvas]
