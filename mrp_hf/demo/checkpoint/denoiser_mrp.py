"""One decode's view of the model: pack states, run backbone or head behind their caches, score masked positions.

The decoding loops are written in these four verbs: `backbone`, `head`, `propose` and `keep`.
"""

import torch
from torch import Tensor

from .cache_mrp import BlockCache
from .masks_mrp import Packing, pack_candidates
from .protocol_mrp import DiffusionLM
from .reveal_mrp import Proposal, RevealRule, State
from .rows_mrp import Rows
from .sampling_mrp import TokenChooser, probability_of
from .stats_mrp import MRPStats


class Denoiser:
    """Runs a model for the rows of one decode.

    No forward is spent on writing a cache: prompts and finished blocks ride along with the next forward of their row.

    Args:
        model (`DiffusionLM`): the model.
        rows (`Rows`): the rows; the loops change them, the denoiser reads them.
        rule (`RevealRule`), chooser (`TokenChooser`): how a step reveals.
        lookahead_steps (`int`): most candidates behind the certain one in a forward.
        use_head (`bool`): whether the head will be called, so that its cache and its inputs are kept.
    """

    def __init__(
        self,
        model: DiffusionLM,
        rows: Rows,
        rule: RevealRule,
        chooser: TokenChooser,
        lookahead_steps: int = 0,
        use_head: bool = False,
    ):
        self.model, self.rows, self.rule, self.chooser = model, rows, rule, chooser
        self.stats = MRPStats.zeros(len(rows), lookahead_steps, rows.tokens.device)
        canvas, device = rows.tokens.shape[1], rows.tokens.device
        # Behind the canvas: a riding block and the candidates of a row that is in its last block.
        capacity = canvas + (lookahead_steps + 2) * rows.block_length
        self._cache = BlockCache(model.config.num_backbone_layers, len(rows), capacity, device)
        self._head_cache: BlockCache | None = None
        self._clean_hidden: Tensor | None = None
        if use_head:
            self._head_cache = BlockCache(model.config.num_mrp_layers, len(rows), capacity, device)
        self._states_offset = torch.zeros_like(self._cache.committed)

    def backbone(self, states: State, valid: Tensor | None = None) -> Tensor:
        """One backbone forward over states of the current blocks.

        Args:
            states (`State` of shape (rows,) or (rows, candidates)): what to read. Each state sees the row's finished
                blocks and itself.
            valid (`Tensor` of shape (rows, candidates), *optional*): which candidates are real; all by default.

        Returns:
            Hidden states of shape (rows, [candidates,] block_length, hidden).
        """
        active = self.rows.active[:, None]
        candidates = states.ids.shape[1] if states.ids.ndim == 3 else 1
        valid = active.expand(-1, candidates) if valid is None else valid & active
        packing = self._pack(self._cache, self.rows.finished_length, valid)
        clean_ids = self.rows.tokens.gather(1, packing.clean_columns)
        hidden = self.model.backbone_hidden_states(
            torch.cat([clean_ids, states.ids.flatten(1)], dim=1),
            packing.position_ids,
            packing.attention_mask,
            cache=self._cache,
        )
        width = packing.clean_columns.shape[1]
        if self._head_cache is not None:
            self._remember_clean(packing, hidden[:, :width])
        self._count_forward(valid, packing.clean_lengths)
        self._cache.commit(packing.clean_lengths)
        self._states_offset = width - packing.clean_lengths
        return hidden[:, width:].unflatten(1, states.ids.shape[1:])

    def head(self, state: State, hidden: Tensor) -> Tensor:
        """One lookahead step: hidden states (rows, block_length, hidden) after the reveals in `state`."""
        assert self._head_cache is not None, "the denoiser was made without a head"
        assert self._clean_hidden is not None, "the backbone has not run yet"
        packing = self._pack(self._head_cache, self._cache.committed, self.rows.active[:, None])
        columns = packing.clean_columns
        clean_ids = self.rows.tokens.gather(1, columns)
        clean_hidden = self._clean_hidden.gather(1, columns[:, :, None].expand(-1, -1, hidden.shape[-1]))
        following = self.model.mrp_step(
            torch.cat([clean_ids, state.ids], dim=1),
            torch.cat([clean_hidden, hidden], dim=1),
            packing.position_ids,
            packing.attention_mask,
            cache=self._head_cache,
        )
        self._head_cache.commit(packing.clean_lengths)
        self.stats.head_forwards += state.masked.any(-1)
        return following[:, columns.shape[1] :]

    def propose(self, states: State, hidden: Tensor) -> Proposal:
        """Token and confidence for each masked position of `states`; logits are computed nowhere else."""
        masked = states.masked
        row, position, step = self._noise_keys(states)
        tokens, confidence = self.chooser.choose(self.model.project(hidden[masked]), row, position, step)
        return Proposal(
            states.ids.masked_scatter(masked, tokens),
            confidence.new_full(masked.shape, -1.0).masked_scatter(masked, confidence),
        )

    def reveal(self, states: State, hidden: Tensor) -> State:
        """One application of the reveal rule."""
        return self.rule.apply(self.propose(states, hidden), states)

    def confidence_in(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """Probability of `tokens` (rows, block_length) at `positions` (boolean), 2 elsewhere."""
        logits = self.chooser.suppress(self.model.project(hidden[positions]))
        confidence = probability_of(logits, tokens[positions])
        return confidence.new_full(positions.shape, 2.0).masked_scatter(positions, confidence)

    def keep(self, candidate: Tensor, full: Tensor, hidden: Tensor) -> None:
        """Take over the last forward's keys and values of candidate number `candidate` (rows,) where it is `full`.

        To be called before the rows enter their next block; `hidden` (rows, block_length, hidden) are the candidate's.
        """
        rows = full.nonzero().squeeze(1)
        if len(rows) == 0:
            return
        block_length = self.rows.block_length
        self._cache.keep((self._states_offset + candidate * block_length)[rows], block_length, rows)
        if self._clean_hidden is not None:
            columns = self.rows.positions()[rows]
            self._clean_hidden[rows[:, None], columns] = hidden[rows]

    def _pack(self, cache: BlockCache, finished: Tensor, valid: Tensor) -> Packing:
        # A finished row takes part as padding: nothing of it rides along any more, and it writes at the front, because
        # other rows may have more to write than there is room behind its end.
        cache.forget(~self.rows.active)
        finished = finished.masked_fill(~self.rows.active, 0)
        return pack_candidates(cache.committed, finished, self.rows.positions(), valid, self.model.dtype)

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

    def _noise_keys(self, states: State) -> tuple[Tensor, Tensor, Tensor]:
        """Seed, position and step of each masked position, all of shape (masked positions,)."""
        shape = states.masked.shape
        middle = (1,) * (len(shape) - 2)
        seeds = self.rows.seeds.view(-1, *middle, 1).expand(shape)
        positions = self.rows.positions().view(shape[0], *middle, shape[-1]).expand(shape)
        steps = states.step.unsqueeze(-1).expand(shape)
        return seeds[states.masked], positions[states.masked], steps[states.masked]
