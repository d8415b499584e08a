"""Denoising with a block-causal backbone: finished blocks are cached, states of the current block are packed."""

import torch
from torch import Tensor

from .alignment_mrp import align
from .cache_mrp import BlockCache
from .denoiser_mrp import Denoiser
from .masks_mrp import Packing, pack_candidates
from .protocol_mrp import DiffusionLM
from .reveal_mrp import RevealRule, State
from .rows_mrp import Rows
from .sampling_mrp import TokenChooser


class BlockCausalDenoiser(Denoiser):
    """Each state sees the row's finished blocks and itself; hidden states are those of the current block's places.

    No forward is spent on writing a cache: prompts and finished blocks ride along with the next forward of their row.
    A backbone that takes no cache reads all of them in every forward.

    Args:
        use_head (`bool`): whether the head will be called, so that its cache and its inputs are kept.
        most_candidates (`int`): most states that a forward packs.
    """

    def __init__(
        self,
        model: DiffusionLM,
        rows: Rows,
        rule: RevealRule,
        chooser: TokenChooser,
        lookahead_steps: int = 0,
        use_head: bool = False,
        most_candidates: int = 1,
    ):
        super().__init__(model, rows, rule, chooser, lookahead_steps)
        canvas, device = rows.tokens.shape[1], rows.tokens.device
        # Behind the canvas: a riding block, the candidates of a row that is in its last block, other rows' next blocks.
        capacity = canvas + (most_candidates + 2) * rows.block_length
        self._cache = BlockCache(model.config.num_backbone_layers, len(rows), capacity, device)
        self._caches = model.config.backbone_caches  # otherwise nothing is ever committed
        self._head_cache: BlockCache | None = None
        if use_head:
            self._head_cache = BlockCache(model.config.num_mrp_layers, len(rows), capacity, device)
        # How many of a row's tokens the backbone has read as finished; their hidden states, not aligned, where these
        # are needed again; those of the last forward's candidates.
        self._clean_length = torch.zeros_like(self._cache.committed)
        self._keeps_hidden = use_head or model.config.logit_shift
        self._clean_hidden: Tensor | None = None
        self._candidates_hidden: Tensor | None = None
        self._states_offset = torch.zeros_like(self._cache.committed)
        self._next_hidden: Tensor | None = None

    def backbone(self, states: State, valid: Tensor | None = None) -> Tensor:
        active = self.rows.active[:, None]
        candidates = states.ids.shape[1] if states.ids.ndim == 3 else 1
        valid = active.expand(-1, candidates) if valid is None else valid & active
        full = self._full_candidate(states, valid) if candidates > 1 else None  # a certain state alone is never full
        packing = self._pack(self._cache, self.rows.finished_length, valid, full)
        ids = [self.rows.tokens.gather(1, packing.clean_columns), states.ids.flatten(1)]
        if full is not None:
            ids.append(torch.full_like(self.rows.positions(), self.model.config.mask_token_id))
        hidden = self.model.backbone_hidden_states(
            torch.cat(ids, dim=1),
            packing.position_ids,
            packing.attention_mask,
            cache=self._cache if self._caches else None,
        )
        width = packing.clean_columns.shape[1]
        own = hidden[:, width:].unflatten(1, (-1, self.rows.block_length))
        if full is not None:
            own, self._next_hidden = own[:, :-1], own[:, -1]
            if self.model.config.logit_shift:
                every = torch.arange(len(full), device=full.device)
                self._next_hidden = align(self._next_hidden, own[every, full.clamp(min=0)][:, -1:])
        if self._keeps_hidden:
            self._remember_clean(packing, hidden[:, :width])
            self._candidates_hidden = own
        self._count_forward(valid, packing.clean_lengths)
        if full is not None:
            self.stats.query_tokens += (full >= 0) * self.rows.block_length
        self._clean_length = self._cache.committed + packing.clean_lengths
        if self._caches:
            self._cache.commit(packing.clean_lengths)
        self._states_offset = width - packing.clean_lengths
        return self._align(own).view(*states.ids.shape, -1)

    def head(self, state: State, hidden: Tensor) -> Tensor:
        assert self._head_cache is not None, "the denoiser was made without a head"
        packing = self._pack(self._head_cache, self._clean_length, self.rows.active[:, None])
        columns = packing.clean_columns
        following = self.model.mrp_step(
            torch.cat([self.rows.tokens.gather(1, columns), state.ids], dim=1),
            torch.cat([self._clean_at(self._predecessors(columns)), hidden], dim=1),
            packing.position_ids,
            packing.attention_mask,
            cache=self._head_cache,
        )
        self._head_cache.commit(packing.clean_lengths)
        self.stats.head_forwards += state.masked.any(-1)
        return following[:, columns.shape[1] :]

    def keep(self, candidate: Tensor, full: Tensor) -> None:
        """Its keys and values, and its hidden states where they are kept, become those of the finished block."""
        rows = full.nonzero().squeeze(1)
        if len(rows) == 0:
            return
        block_length = self.rows.block_length
        if self._caches:
            self._cache.keep((self._states_offset + candidate * block_length)[rows], block_length, rows)
        self._clean_length = self._clean_length + full * block_length
        if self._clean_hidden is not None:
            assert self._candidates_hidden is not None
            columns = self.rows.positions()[rows]
            self._clean_hidden[rows[:, None], columns] = self._candidates_hidden[rows, candidate[rows]]

    def next_block(self, reached_hidden: Tensor) -> Tensor | None:
        assert self._next_hidden is not None, "no candidate of the last forward was full"
        return self._next_hidden

    def of_block(self, hidden: Tensor) -> Tensor:
        return hidden

    def _full_candidate(self, states: State, valid: Tensor) -> Tensor | None:
        """Number (rows,) of a candidate without masks in rows that go on behind it, else -1; `None` if all are -1."""
        full = valid & ~states.masked.view(*valid.shape, -1).any(-1)
        goes_on = self.rows.finished_length + self.rows.block_length < self.rows.limits
        full = full & goes_on[:, None]
        if not full.any():
            return None
        return torch.where(full.any(-1), full.int().argmax(-1), -1)

    def _align(self, own: Tensor) -> Tensor:
        """Hidden states (rows, candidates, block_length, hidden) of the places that predict the block's tokens."""
        if not self.model.config.logit_shift:
            return own
        # The block's first token is predicted by the finished block before; at position 0 nothing is before.
        start = self.rows.positions()[:, :1]
        before = self._clean_at(self._predecessors(start)).unsqueeze(1).expand(-1, own.shape[1], -1, -1)
        before = torch.where((start == 0)[:, :, None, None], own[:, :, :1], before)
        return align(own, before)

    def _predecessors(self, columns: Tensor) -> Tensor:
        """Where the hidden states stand that predict the tokens in `columns`."""
        return (columns - int(self.model.config.logit_shift)).clamp(min=0)

    def _clean_at(self, columns: Tensor) -> Tensor:
        assert self._clean_hidden is not None, "the backbone has not run yet"
        return self._clean_hidden.gather(1, columns[:, :, None].expand(-1, -1, self._clean_hidden.shape[-1]))

    def _pack(self, cache: BlockCache, finished: Tensor, valid: Tensor, full: Tensor | None = None) -> Packing:
        # A finished row takes part as padding: nothing of it rides along any more, and it writes at the front, because
        # other rows may have more to write than there is room behind its end.
        cache.forget(~self.rows.active)
        finished = finished.masked_fill(~self.rows.active, 0)
        return pack_candidates(cache.committed, finished, self.rows.positions(), valid, self.model.dtype, full)

    def _remember_clean(self, packing: Packing, hidden: Tensor) -> None:
        if self._clean_hidden is None:
            rows, canvas = self.rows.tokens.shape
            self._clean_hidden = hidden.new_zeros(rows, canvas, hidden.shape[-1])
        real = torch.arange(hidden.shape[1], device=hidden.device) < packing.clean_lengths[:, None]
        row, column = real.nonzero(as_tuple=True)
        self._clean_hidden[row, packing.clean_columns[row, column]] = hidden[row, column]

    def _count_forward(self, valid: Tensor, clean_lengths: Tensor) -> None:
        candidates = valid.sum(-1)
        prompt_rides = self._cache.committed < self.rows.prompt_lengths
        kinds = {
            "verify": candidates > 1,
            "denoise": candidates == 1,
            "prefill": (candidates == 0) & (clean_lengths > 0) & prompt_rides,
            "commit": (candidates == 0) & (clean_lengths > 0) & ~prompt_rides,
        }
        for kind, counted in kinds.items():
            self.stats.forwards[kind] += counted
        self.stats.query_tokens += clean_lengths + candidates * self.rows.block_length
