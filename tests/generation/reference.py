"""Plain diffusion decoding written again, slowly and without a cache, from the definitions alone.

One row, one full forward a step over the whole text, python loops. What the library decodes must equal this.
"""

import torch
from torch import Tensor

from mrp_hf import MRPForDiffusionLM


def block_causal_mask(length: int, block_length: int) -> Tensor:
    blocks = torch.arange(length) // block_length
    visible = blocks[None, :] <= blocks[:, None]
    return torch.zeros(length, length).masked_fill(~visible, float("-inf"))[None, None]


def logits_of(model: MRPForDiffusionLM, ids: list[int], block_length: int) -> Tensor:
    """The native backbone's logits (length, vocabulary) for one whole row."""
    with torch.no_grad():
        output = model.backbone(
            input_ids=torch.tensor([ids]),
            position_ids=torch.arange(len(ids))[None],
            attention_mask=block_causal_mask(len(ids), block_length),
            use_cache=False,
        )
    return output.logits[0].float()


def positions_of_step(
    strategy: str, confidence: dict[int, float], step: int, block_length: int, denoising_steps: int, threshold: float
) -> list[int]:
    """The masked positions to reveal, given each one's confidence."""
    count = block_length // denoising_steps + (1 if step < block_length % denoising_steps else 0)
    if strategy == "sequential":
        return sorted(confidence)[:count]
    surest = sorted(confidence, key=lambda position: (-confidence[position], position))[:count]
    if strategy == "low_confidence_static":
        return surest
    above = [position for position in confidence if confidence[position] > threshold]
    return above if len(above) >= count else surest


def decode_slowly(
    model: MRPForDiffusionLM,
    prompt: list[int],
    max_new_tokens: int,
    strategy: str = "low_confidence_static",
    denoising_steps: int | None = None,
    threshold: float = 0.9,
    eos: int | None = None,
    choose=None,
) -> tuple[list[int], int]:
    """New tokens kept and forwards made. `choose(logits, position, step) -> token` is greedy by default."""
    config = model.config
    block_length, mask = config.block_length, config.mask_token_id
    limit = len(prompt) + max_new_tokens
    ids, masked, forwards = list(prompt), set(), 0
    for block in range(len(prompt) // block_length, -(-limit // block_length)):
        start, end = block * block_length, (block + 1) * block_length
        masked = set(range(max(start, len(prompt)), end))
        ids = ids + [mask] * (end - len(ids))
        step = 0
        while masked:
            logits = logits_of(model, ids, block_length)
            forwards += 1
            logits[:, mask] = -torch.inf
            chosen, confidence = {}, {}
            for position in masked:
                row = logits[position]
                chosen[position] = int(row.argmax()) if choose is None else choose(row, position, step)
                confidence[position] = float(torch.softmax(row, -1)[chosen[position]])
            for position in positions_of_step(
                strategy, confidence, step, block_length, denoising_steps or block_length, threshold
            ):
                ids[position] = chosen[position]
                masked.remove(position)
            step += 1
            ends = [p for p in range(len(prompt), limit) if p < len(ids) and ids[p] == eos and p not in masked]
            if ends and not any(position < ends[0] for position in masked):
                return ids[len(prompt) : ends[0] + 1], forwards
    return ids[len(prompt) : limit], forwards
