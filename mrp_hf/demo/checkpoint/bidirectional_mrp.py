"""Denoising with a bidirectional backbone: every forward reads the whole canvas, so nothing is cached."""

import torch
from torch import Tensor
from transformers import Cache

from .alignment_mrp import align
from .denoiser_mrp import Denoiser
from .masks_mrp import additive, bidirectional_visibility
from .reveal_mrp import State


class BidirectionalDenoiser(Denoiser):
    """Each state stands in its row's canvas: prompt, earlier blocks, itself, masks to the row's limit.

    Hidden states are those of the whole canvas, because the head reads all of it. A finished row is not computed.
    """

    def backbone(self, states: State, valid: Tensor | None = None) -> Tensor:
        rows = self.rows
        candidates = states.ids.shape[1] if states.ids.ndim == 3 else 1
        active = rows.active[:, None].expand(-1, candidates)
        valid = active if valid is None else valid & active
        row, candidate = valid.nonzero(as_tuple=True)
        ids = states.ids.view(len(rows), candidates, -1)[row, candidate]
        computed = self._compute(row, ids)
        hidden = computed.new_zeros(*valid.shape, *computed.shape[1:])
        hidden[row, candidate] = align(computed) if self.model.config.logit_shift else computed
        counts = valid.sum(-1)
        self.stats.forwards["verify"] += counts > 1
        self.stats.forwards["denoise"] += counts == 1
        self.stats.query_tokens += counts * rows.limits
        return hidden if states.ids.ndim == 3 else hidden.squeeze(1)

    def head(self, state: State, hidden: Tensor) -> Tensor:
        (row,) = self.rows.active.nonzero(as_tuple=True)
        ids, position_ids, mask = self._canvas(row, state.ids[row])
        following = torch.zeros_like(hidden)
        following[row] = self.model.mrp_step(ids, hidden[row], position_ids, mask)
        self.stats.head_forwards += state.masked.any(-1)
        return following

    def keep(self, candidate: Tensor, full: Tensor) -> None:
        """Nothing is kept: what a place saw has changed with every token revealed."""

    def next_block(self, reached_hidden: Tensor) -> Tensor | None:
        """Those of the full candidate: its canvas is the one that the next block begins with."""
        return reached_hidden

    def of_block(self, hidden: Tensor) -> Tensor:
        places = self.rows.positions()
        places = places.view(len(places), *(1,) * (hidden.ndim - 3), -1, 1)
        return hidden.gather(-2, places.expand(*hidden.shape[:-2], -1, hidden.shape[-1]))

    def _compute(self, row: Tensor, ids: Tensor) -> Tensor:
        """Hidden states (n, canvas, hidden), not aligned, of the canvases that `_canvas` makes."""
        return self._run(row, ids, cache=None)

    def _run(self, row: Tensor, ids: Tensor, cache: Cache | None) -> Tensor:
        return self.model.backbone_hidden_states(*self._canvas(row, ids), cache=cache)

    def _tokens(self, row: Tensor, ids: Tensor) -> Tensor:
        return self.rows.tokens[row].scatter(1, self.rows.positions()[row], ids)

    def _canvas(self, row: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, positions and mask of the canvases of `row` (n,), with `ids` (n, block_length) as current blocks."""
        tokens = self._tokens(row, ids)
        columns = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        real = columns < self.rows.limits[row, None]
        return tokens, columns, additive(bidirectional_visibility(real), self.model.dtype)
