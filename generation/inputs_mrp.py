"""Check and complete what `generate` is given, before any work is done."""

import torch
from torch import Tensor
from transformers.utils import logging

from .configuration_generation_mrp import MRPGenerationConfig
from .protocol_mrp import DiffusionLMConfig
from .sampling_mrp import fold

logger = logging.get_logger(__name__)


def prepare_inputs(
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    config: MRPGenerationConfig,
    model_config: DiffusionLMConfig,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Prompts and their padding mask (0 or 1), int64 on `device`, repeated for `num_return_sequences`.

    Sets `config.pad_token_id` where it is missing.
    """
    if input_ids is None or not isinstance(input_ids, Tensor) or input_ids.ndim != 2 or input_ids.is_floating_point():
        got = "missing" if input_ids is None else f"a {type(input_ids).__name__}"
        shape = f" of shape {tuple(input_ids.shape)}" if isinstance(input_ids, Tensor) else ""
        raise ValueError(f"`input_ids` is {got}{shape}: give token ids of shape (rows, width).")
    if len(input_ids) == 0:
        raise ValueError("`input_ids` has no rows: give at least one prompt.")
    outside = (input_ids < 0) | (input_ids >= model_config.vocab_size)
    if outside.any():
        raise ValueError(
            f"`input_ids` holds {input_ids[outside][0].item()}, but the vocabulary has {model_config.vocab_size} "
            "tokens: use the model's own tokenizer."
        )
    suppressed = config.suppress_tokens or []
    if not all(0 <= token < model_config.vocab_size for token in suppressed):
        raise ValueError(f"`suppress_tokens` is {suppressed}: ids go from 0 to {model_config.vocab_size - 1}.")
    if len({model_config.mask_token_id, *suppressed}) == model_config.vocab_size:
        raise ValueError("`suppress_tokens` leaves no token to generate: the mask token never is; list fewer.")
    if config.pad_token_id is None:
        eos = config.eos_token_id
        ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
        config.pad_token_id = ends[0] if ends else 0
        logger.warning_once(f"`pad_token_id` is not set: padding with {config.pad_token_id}.")
    if not 0 <= config.pad_token_id < model_config.vocab_size:
        raise ValueError(
            f"`pad_token_id` is {config.pad_token_id}, but ids go from 0 to {model_config.vocab_size - 1}: give one of "
            "them."
        )
    if attention_mask is None:
        attention_mask = _infer_padding(input_ids, config.pad_token_id)
    if not isinstance(attention_mask, Tensor) or attention_mask.shape != input_ids.shape:
        is_tensor = isinstance(attention_mask, Tensor)
        got = f"has shape {tuple(attention_mask.shape)}" if is_tensor else f"is a {type(attention_mask).__name__}"
        raise ValueError(
            f"`attention_mask` {got}, but `input_ids` has shape {tuple(input_ids.shape)}: give one entry a token, 1 at "
            "real tokens and 0 at padding."
        )
    real = (attention_mask != 0).long().to(device)
    if not torch.equal(real, attention_mask.long().to(device)):
        raise ValueError("`attention_mask` holds other values than 0 and 1: give 1 at real tokens and 0 at padding.")
    repeats = config.num_return_sequences or 1
    return input_ids.long().to(device).repeat_interleave(repeats, dim=0), real.repeat_interleave(repeats, dim=0)


def _infer_padding(input_ids: Tensor, pad_token_id: int) -> Tensor:
    """1 at real tokens: runs of `pad_token_id` at a row's start or end count as padding, with a warning."""
    is_real = input_ids != pad_token_id
    after_first = is_real.long().cumsum(-1) > 0
    before_last = is_real.long().flip(-1).cumsum(-1).flip(-1) > 0
    real = after_first & before_last
    if not real.all():
        logger.warning_once(
            f"No `attention_mask` was given, and rows start or end with the padding token {pad_token_id}: these tokens "
            "are taken for padding. Pass the tokenizer's attention_mask to be sure."
        )
    return real.long()


def check_token_types(token_type_ids: Tensor | None, model_config: DiffusionLMConfig) -> None:
    """Raise a `ValueError` for token types that the backbone does not have, or that are not of new tokens' kind."""
    if token_type_ids is None:
        return
    if not model_config.has_token_types:
        raise ValueError(
            "`token_type_ids` have no meaning for this model, which has no token types: call the tokenizer with "
            "return_token_type_ids=False."
        )
    if token_type_ids.any():
        raise ValueError(
            "`token_type_ids` holds types other than 0, but prompt and answer are one text: give the prompt as a "
            "single sequence."
        )


def wanted_tokens(prompt_lengths: Tensor, config: MRPGenerationConfig) -> Tensor:
    """New tokens wanted (rows,); `ValueError` where `max_length` leaves a row none."""
    if config.max_new_tokens is not None:
        return torch.full_like(prompt_lengths, config.max_new_tokens)
    wanted = config.max_length - prompt_lengths
    if int(wanted.min()) < 1:
        raise ValueError(
            f"`max_length` is {config.max_length}, but a prompt has {int(prompt_lengths.max())} tokens already: raise "
            "it, or use max_new_tokens."
        )
    return wanted


def check_length(
    prompt_lengths: Tensor, new_tokens: Tensor, model_config: DiffusionLMConfig, block_length: int | None
) -> None:
    """Raise a `ValueError` where a row would outgrow the model.

    Args:
        prompt_lengths, new_tokens (`Tensor` of shape (rows,)): real tokens of each row, and those wanted.
        block_length (`int`, *optional*): of blocks that are aligned to position 0 and denoised whole.
    """
    needed = int((prompt_lengths + new_tokens).max())
    whole_blocks = ""
    if block_length is not None:
        needed = -(-needed // block_length) * block_length
        whole_blocks = f" (whole blocks of {block_length})"
    if needed > model_config.max_position_embeddings:
        raise ValueError(
            f"A prompt of {int(prompt_lengths.max())} tokens and what is to follow need {needed} positions"
            f"{whole_blocks}, but the model has {model_config.max_position_embeddings}: shorten the prompt or lower "
            "`max_new_tokens`."
        )


def row_seeds(config: MRPGenerationConfig, rows: int, device: torch.device) -> Tensor:
    """The noise key of each row (rows,): the seed, hashed with the return index under `num_return_sequences`."""
    repeats = config.num_return_sequences or 1
    prompts = rows // repeats
    seed = config.seed
    if isinstance(seed, list | tuple) and len(seed) != prompts:
        raise ValueError(
            f"`seed` lists {len(seed)} seeds for {prompts} prompts: give one a prompt, or a single number."
        )
    if not config.do_sample and config.remasking_strategy != "random":
        return torch.zeros(rows, dtype=torch.long, device=device)
    if seed is None:
        seed = int(torch.randint(2**62, ()).item())
    seeds = torch.tensor(seed if isinstance(seed, list | tuple) else [seed] * prompts, device=device)
    seeds = seeds.repeat_interleave(repeats)
    index = torch.arange(repeats, device=device).repeat(prompts)
    return torch.where(index == 0, seeds, fold(fold(torch.zeros_like(seeds), seeds), index))
