"""Where each row of a decode stands: its tokens, its current block, whether it is finished.

Rows are left-aligned: column = position, counted from the row's first real token, so padding never enters a decode and
blocks are aligned to each row's own positions: to position 0 for block-causal backbones, whose prompt shares its last
block with the answer, and to the end of the prompt for bidirectional ones, which know no blocks but the sampler's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .reveal_mrp import State


@dataclass
class Rows:
    """The rows of one decode.

    Attributes:
        tokens (`Tensor` of shape (rows, canvas)): prompt, finished blocks, current block, mask tokens behind.
        masked (`Tensor` of shape (rows, canvas)): the places still to fill.
        prompt_lengths, limits (`Tensor` of shape (rows,)): real prompt tokens; the same plus the tokens wanted.
        origins (`Tensor` of shape (rows,)): where block 0 begins.
        seeds (`Tensor` of shape (rows,)): what each row's noise is keyed by.
        block, step (`Tensor` of shape (rows,)): the current block's number and the steps made in it.
        active (`Tensor` of shape (rows,)): rows that are not finished.
    """

    tokens: Tensor
    masked: Tensor
    prompt_lengths: Tensor
    limits: Tensor
    origins: Tensor
    seeds: Tensor
    block: Tensor
    step: Tensor
    active: Tensor
    block_length: int
    eos_token_ids: Tensor

    @classmethod
    def start(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor,
        max_new_tokens: Tensor,
        seeds: Tensor,
        block_length: int,
        mask_token_id: int,
        eos_token_ids: Tensor,
        blocks_from_prompt_end: bool = False,
    ) -> "Rows":
        """Rows before the first step.

        Args:
            blocks_from_prompt_end (`bool`): count blocks from each prompt's end and make the last one as short as the
                row's limit asks; otherwise from position 0, with every block denoised whole.
        """
        prompt_lengths = attention_mask.sum(-1)
        limits = prompt_lengths + max_new_tokens
        origins = prompt_lengths if blocks_from_prompt_end else torch.zeros_like(prompt_lengths)
        ends = origins + -(-(limits - origins) // block_length) * block_length
        canvas = int(ends.max())
        columns = torch.arange(canvas, device=input_ids.device).expand(len(input_ids), canvas)
        in_prompt = columns < prompt_lengths[:, None]
        real_first = attention_mask.argsort(dim=-1, descending=True, stable=True)
        prompts = input_ids.gather(1, real_first)[:, :canvas]
        tokens = input_ids.new_full((len(input_ids), canvas), mask_token_id)
        tokens[:, : prompts.shape[1]] = prompts
        masked = ~in_prompt & (columns < (limits if blocks_from_prompt_end else ends)[:, None])
        return cls(
            tokens=tokens.masked_fill(~in_prompt, mask_token_id),
            masked=masked,
            prompt_lengths=prompt_lengths,
            limits=limits,
            origins=origins,
            seeds=seeds,
            block=(prompt_lengths - origins) // block_length,
            step=torch.zeros_like(prompt_lengths),
            active=torch.ones_like(prompt_lengths, dtype=torch.bool),
            block_length=block_length,
            eos_token_ids=eos_token_ids,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def finished_length(self) -> Tensor:
        """Tokens (rows,) in the prompt's whole blocks and in finished ones."""
        return self.origins + self.block * self.block_length

    def positions(self) -> Tensor:
        """Positions (rows, block_length) of the current block; a finished row's are those of its last one."""
        last = (self.limits - self.origins - 1) // self.block_length
        start = self.origins + torch.minimum(self.block, last) * self.block_length
        return start[:, None] + torch.arange(self.block_length, device=start.device)

    def state(self) -> State:
        """The current block of each row; a finished row has no masks."""
        positions = self.positions()
        masked = self.masked.gather(1, positions) & self.active[:, None]
        return State(self.tokens.gather(1, positions), masked, self.step)

    def advance(self, state: State) -> None:
        """Take over `state` as each active row's current block, then enter the next block or finish the row.

        A row is finished once no masked place precedes its first generated end-of-sequence token, or when its last
        block is full.
        """
        positions = self.positions()
        live = self.active[:, None]
        self.tokens.scatter_(1, positions, torch.where(live, state.ids, self.tokens.gather(1, positions)))
        self.masked.scatter_(1, positions, torch.where(live, state.masked, self.masked.gather(1, positions)))
        self.step = torch.where(self.active, state.step, self.step)

        is_end = torch.isin(state.ids, self.eos_token_ids) & ~state.masked & self._wanted(positions)
        masks_before = state.masked.cumsum(-1)
        ended = (is_end & (masks_before == 0)).any(-1)
        full = ~state.masked.any(-1) & self.active
        self.block = self.block + full.long()
        self.step = torch.where(full, 0, self.step)
        self.active = self.active & ~ended & (self.finished_length < self.limits)

    def _wanted(self, positions: Tensor) -> Tensor:
        return (positions >= self.prompt_lengths[:, None]) & (positions < self.limits[:, None])

    def new_tokens(self) -> tuple[Tensor, Tensor]:
        """Generated tokens (rows, longest), the rest of each row unspecified, and how many of them each row keeps.

        A row keeps what comes before its first masked place, up to its limit and up to its first end-of-sequence
        token, that token included.
        """
        longest = int((self.limits - self.prompt_lengths).max())
        offsets = torch.arange(longest, device=self.tokens.device)
        columns = self.prompt_lengths[:, None] + offsets
        inside = columns < self.limits[:, None]
        columns = columns.clamp(max=self.tokens.shape[1] - 1)
        tokens, masked = self.tokens.gather(1, columns), self.masked.gather(1, columns)
        filled = inside & (masked.cumsum(-1) == 0)
        is_end = torch.isin(tokens, self.eos_token_ids) & filled
        ends_before = is_end.cumsum(-1) - is_end.long()
        return tokens, (filled & (ends_before == 0)).sum(-1)
