"""`MRPGenerationMixin.generate`: check the call, choose a decoding loop, pack the output."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging
from transformers.utils.generic import ModelOutput

from .approximate_mrp import ApproximateDenoiser
from .bidirectional_mrp import BidirectionalDenoiser
from .block_causal_mrp import BlockCausalDenoiser
from .configuration_generation_mrp import MRPGenerationConfig, resolve
from .denoiser_mrp import Denoiser
from .direct_mrp import decode_direct
from .inputs_mrp import check_length, check_token_types, prepare_inputs, row_seeds, wanted_tokens
from .plain_mrp import decode_plain
from .protocol_mrp import DiffusionLM
from .remask_mrp import decode_remask
from .reveal_mrp import RevealRule
from .rows_mrp import Rows
from .sampling_mrp import TokenChooser
from .speculative_mrp import decode_speculative
from .stats_mrp import MRPStats
from .streaming_mrp import RowStreamer

logger = logging.get_logger(__name__)


@dataclass
class MRPGenerationOutput(ModelOutput):
    """What `generate` returns with `return_dict_in_generate=True`.

    Attributes:
        sequences (`Tensor` of shape (rows, input width + longest answer)): the input, then the new tokens; padding
            follows a row's end.
        tokens_per_forward (`Tensor` of shape (rows,)): new tokens kept, end of sequence included, a backbone forward.
        mrp_stats (`MRPStats`): exact counts, per row.
    """

    sequences: Tensor | None = None
    tokens_per_forward: Tensor | None = None
    mrp_stats: MRPStats | None = None


class MRPGenerationMixin(GenerationMixin):
    """Diffusion decoding for a model that offers what `DiffusionLM` asks for."""

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        streamer: BaseStreamer | None = None,
        token_type_ids: Tensor | None = None,
        **fields: Any,
    ) -> Tensor | MRPGenerationOutput:
        """Complete prompts by denoising block after block.

        A row's output is the same alone, in any batch, with left or right padding. In speculative mode it is the same
        as in plain mode, token for token, greedy and sampled. A row ends at its first end-of-sequence token or after
        `max_new_tokens`; only padding follows. The mask token is never generated.

        Args:
            input_ids (`Tensor` of shape (rows, width)): prompts of any lengths, padded left or right.
            attention_mask (`Tensor` of shape (rows, width), *optional*): 1 at real tokens. Without it, padding is
                inferred from `pad_token_id`, with a warning.
            generation_config (`GenerationConfig`, *optional*): laid over the model's own.
            streamer (`BaseStreamer`, *optional*): for one row: `put(prompt)`, `put_draft` of the current block's new
                tokens every round, `put` of kept tokens for every finished block, `end()`.
            token_type_ids (`Tensor` of shape (rows, width), *optional*): accepted where the backbone has token types,
                as long as they are all 0, the type that new tokens get.
            fields: fields of `MRPGenerationConfig`, of highest priority. Unknown ones are an error.

        Returns:
            `Tensor` of shape (rows, width + longest answer), or `MRPGenerationOutput` with `return_dict_in_generate`.

        Raises:
            ValueError: for any wrong argument, before work is done.
        """
        model: Any = self  # a `DiffusionLM`; the mixin itself declares none of its members
        config = resolve(model.generation_config, generation_config, fields)
        input_ids, attention_mask = prepare_inputs(input_ids, attention_mask, config, model.config, model.device)
        check_token_types(token_type_ids, model.config)
        if streamer is not None and len(input_ids) != 1:
            raise ValueError(f"`streamer` follows one row, but there are {len(input_ids)}: generate them one by one.")
        if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise ValueError(f"`streamer` is a {type(streamer).__name__}: give an object with `put` and `end`.")
        denoiser, loop = _start_decode(model, input_ids, attention_mask, config)
        rows = denoiser.rows
        row_streamer = None if streamer is None else RowStreamer(streamer, rows)
        for _ in loop:
            if row_streamer is not None:
                row_streamer.update()
        if streamer is not None:
            streamer.end()

        tokens, kept = rows.new_tokens()
        tokens = tokens[:, : int(kept.max())]
        behind = torch.arange(tokens.shape[1], device=tokens.device) >= kept[:, None]
        sequences = torch.cat([input_ids, tokens.masked_fill(behind, config.pad_token_id)], dim=1)
        if not config.return_dict_in_generate:
            return sequences
        stats = denoiser.stats.cpu()
        tokens_per_forward = kept.cpu() / stats.backbone_forwards
        return MRPGenerationOutput(sequences=sequences, tokens_per_forward=tokens_per_forward, mrp_stats=stats)


def _start_decode(
    model: DiffusionLM, input_ids: Tensor, attention_mask: Tensor, config: MRPGenerationConfig
) -> tuple[Denoiser, Iterator[None]]:
    """The denoiser of this call and the loop of its mode, checked and not yet started."""
    mode, steps = config.mrp_mode, config.mrp_num_lookahead_steps
    bidirectional = model.config.attention_pattern == "bidirectional"
    if config.approximate_cache is not None and not (bidirectional and model.config.backbone_caches):
        reason = "takes no cache" if bidirectional else "is block-causal, and its block cache is exact"
        raise ValueError(
            f"`approximate_cache` is {config.approximate_cache!r}, but the backbone {reason}: leave it out."
        )
    prompt_lengths = attention_mask.sum(-1)
    new_tokens = wanted_tokens(prompt_lengths, config)
    block_length = config.block_length or model.config.block_length or int(new_tokens.max())
    check_length(prompt_lengths, new_tokens, model.config, None if bidirectional else block_length)
    denoising_steps = config.denoising_steps or block_length
    if denoising_steps > block_length:
        raise ValueError(
            f"`denoising_steps` is {denoising_steps}, but a block has {block_length} tokens: give at most those."
        )
    draft_with_head = _draft_with_head(model, config)
    use_head = mode in ("direct", "remask") or (mode == "speculative" and draft_with_head)
    if use_head and model.config.num_mrp_layers == 0:
        asked = "mrp_drafter='head'" if mode == "speculative" else f"mrp_mode={mode!r}"
        raise ValueError(
            f"`{asked}` needs an MRP head, and this model has none (num_mrp_layers=0): attach one with "
            "MRPForDiffusionLM.from_backbone, or use mrp_mode='speculative' with mrp_drafter='backbone'."
        )
    if mode in ("direct", "remask") and not model.config.mrp_head_trained:
        logger.warning_once(f"The model's MRP head has not been trained: expect little of mrp_mode={mode!r}.")
    rows = Rows.start(
        input_ids,
        attention_mask,
        new_tokens,
        row_seeds(config, len(input_ids), input_ids.device),
        block_length,
        model.config.mask_token_id,
        torch.tensor(_as_list(config.eos_token_id), dtype=torch.long, device=input_ids.device),
        blocks_from_prompt_end=bidirectional,
    )
    rule = RevealRule(
        config.remasking_strategy,
        block_length,
        denoising_steps,
        config.confidence_threshold,
        config.entropy_bound,
        config.tie_ceiling,
    )
    chooser = TokenChooser.from_config(config, model.config.mask_token_id, input_ids.device)
    speculated = steps if mode == "speculative" else 0
    denoiser: Denoiser
    if bidirectional and config.approximate_cache is not None:
        denoiser = ApproximateDenoiser(model, rows, rule, chooser, speculated, config.approximate_cache)
    elif bidirectional:
        denoiser = BidirectionalDenoiser(model, rows, rule, chooser, speculated)
    else:
        most_candidates = config.mrp_num_candidates or speculated + 1
        denoiser = BlockCausalDenoiser(model, rows, rule, chooser, speculated, use_head, most_candidates)
    if mode == "direct":
        return denoiser, decode_direct(denoiser, steps)
    if mode == "speculative":
        return denoiser, decode_speculative(denoiser, steps, draft_with_head, config.mrp_num_candidates)
    if mode == "remask":
        threshold = config.remask_threshold
        return denoiser, decode_remask(denoiser, config.confidence_threshold if threshold is None else threshold)
    return denoiser, decode_plain(denoiser)


def _draft_with_head(model: DiffusionLM, config: MRPGenerationConfig) -> bool:
    if config.mrp_drafter is not None:
        return config.mrp_drafter == "head"
    if not model.config.mrp_head_trained and config.mrp_mode == "speculative":
        logger.warning_once(
            "The model has no trained MRP head: speculative decoding drafts with mrp_drafter='backbone'."
        )
    return model.config.mrp_head_trained


def _as_list(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)
