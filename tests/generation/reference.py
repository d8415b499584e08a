"""Diffusion decoding written again, slowly and without a cache, from the definitions alone.

One row, one full forward a step over the whole text, python loops, noise in python integers. What the library decodes
must equal this. Every choice is made by a margin, and the smallest one is reported: equality can be demanded where it
is well above rounding.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrp_hf import MRPForDiffusionLM

Choose = Callable[[Tensor, int, int], tuple[int, float]]

WORD = 0xFFFFFFFF


@dataclass
class Decoded:
    """New tokens kept, what they cost, and the smallest margin of a choice."""

    tokens: list[int]
    forwards: int = 0
    head_forwards: int = 0
    remasked: int = 0
    gap: float = math.inf


# The model, over whole rows


def block_causal_mask(length: int, block_length: int, dtype: torch.dtype) -> Tensor:
    blocks = torch.arange(length) // block_length
    visible = blocks[None, :] <= blocks[:, None]
    return torch.zeros(length, length, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]


def is_bidirectional(model: MRPForDiffusionLM) -> bool:
    return model.config.attention_pattern == "bidirectional"


def mask_of(model: MRPForDiffusionLM, length: int, block_length: int) -> Tensor:
    return block_causal_mask(length, length if is_bidirectional(model) else block_length, model.dtype)


@torch.no_grad()
def hidden_of(model: MRPForDiffusionLM, ids: list[int], block_length: int) -> Tensor:
    """What predicts each token of one whole row (length, hidden): the input of the LM head's linear layer.

    It is caught on its way into that layer, so nothing need be known of the backbone.
    """
    caught = []
    hook = model.backbone.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    mask = mask_of(model, len(ids), block_length)
    window = getattr(model.backbone.config, "sliding_window", None)
    if model.backbone.config.model_type == "modernbert":
        places = torch.arange(len(ids))
        near = (places[:, None] - places[None, :]).abs() <= window
        mask = {"full_attention": mask, "sliding_attention": mask.masked_fill(~near, torch.finfo(model.dtype).min)}
    try:
        model.backbone(input_ids=torch.tensor([ids]), position_ids=torch.arange(len(ids))[None], attention_mask=mask)
    finally:
        hook.remove()
    hidden = caught[0][0]
    return torch.cat([hidden[:1], hidden[:-1]]) if model.config.logit_shift else hidden


@torch.no_grad()
def after_lookahead(
    model: MRPForDiffusionLM, ids: list[int], clean: Tensor, current: Tensor, start: int, block_length: int
) -> Tensor:
    """`current` (length, hidden) after the head has read `ids`; before `start` it reads the clean hidden states."""
    reads = current if is_bidirectional(model) else torch.cat([clean[:start], current[start:]])
    predicted = model.mrp_head(
        model.backbone.get_input_embeddings()(torch.tensor([ids])),
        reads[None],
        torch.arange(len(ids))[None],
        mask_of(model, len(ids), block_length),
    )[0]
    return predicted if model.config.mrp_prediction == "direct" else reads + predicted


@torch.no_grad()
def logits_of(model: MRPForDiffusionLM, hidden: Tensor, suppressed: Sequence[int] = ()) -> Tensor:
    """Logits (length, vocabulary) in which neither the mask token nor suppressed ones can be chosen."""
    logits = model.backbone.get_output_embeddings()(hidden).float() * model.config.logit_scale
    logits[:, [model.config.mask_token_id, *suppressed]] = -torch.inf
    return logits


# Noise and choice of a token


def mix(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D & WORD
    x = (x ^ (x >> 15)) * 0x846CA68B & WORD
    return x ^ (x >> 16)


def fold(key: int, value: int) -> int:
    return mix((mix(key ^ (value & WORD)) + (value >> 32) + 0x9E3779B9) & WORD)


def uniform(seed: int, position: int, step: int, token: int) -> float:
    key = 0
    for value in (seed, position, step, token):
        key = fold(key, value)
    return ((mix(key) >> 9) + 0.5) / 2**23


def gumbel(seed: int, position: int, step: int, token: int) -> float:
    return -math.log(-math.log(uniform(seed, position, step, token)))


def largest(values: dict[int, float]) -> tuple[int, float]:
    """The key of the largest value, the lowest of equals, and the margin to the next."""
    first, *others = sorted(values, key=lambda key: (-values[key], key))
    return first, values[first] - values[others[0]] if others else math.inf


def greedy(logits: Tensor, position: int, step: int) -> tuple[int, float]:
    return largest({token: value for token, value in enumerate(logits.tolist()) if value > -math.inf})


def sampler(
    seed: int, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0, min_p: float | None = None
) -> Choose:
    """Sampling as documented: temperature, top-k, top-p, min-p, then the largest of logit + Gumbel noise."""

    def choose(logits: Tensor, position: int, step: int) -> tuple[int, float]:
        scores = {
            token: value / temperature for token, value in enumerate(logits.double().tolist()) if value > -math.inf
        }
        ranked = sorted(scores, key=lambda token: -scores[token])[:top_k]
        total = sum(math.exp(scores[token]) for token in ranked)
        kept, mass = {}, 0.0
        for token in ranked:
            likely = scores[token] >= scores[ranked[0]] + math.log(min_p or 1e-300)
            if mass < top_p and likely:
                kept[token] = scores[token] + gumbel(seed, position, step, token)
            mass += math.exp(scores[token]) / total
        return largest(kept)

    return choose


# Decoding


def positions_of_step(
    strategy: str,
    confidence: dict[int, float],
    step: int,
    block_length: int,
    denoising_steps: int,
    threshold: float,
    entropy: dict[int, float],
    lot: dict[int, float],
    entropy_bound: float,
    tie_ceiling: float | None = None,
) -> tuple[list[int], float]:
    """The masked positions to reveal, given each one's numbers, and the margin by which they were chosen."""
    if strategy == "entropy_bounded":
        chosen, total = [], 0.0
        gaps = [math.inf]
        for position in sorted(entropy, key=lambda p: (entropy[p], p)):
            gaps.append(abs(total - entropy_bound) if chosen else math.inf)
            if total > entropy_bound:
                break
            chosen.append(position)
            total += entropy[position]
        values = sorted(entropy.values())
        return chosen, min(gaps + [b - a for a, b in itertools.pairwise(values)])
    count = block_length // denoising_steps + (1 if step < block_length % denoising_steps else 0)
    if strategy == "sequential":
        return sorted(confidence)[:count], math.inf
    values = lot if strategy == "random" else confidence
    gap = math.inf
    if strategy != "low_confidence_static":
        tie_ceiling = None
    if tie_ceiling is not None:
        gap = min(abs(value - tie_ceiling) for value in values.values())
        values = {position: min(value, tie_ceiling) for position, value in values.items()}
    order = sorted(values, key=lambda position: (-values[position], position))
    if count < len(order) and values[order[count - 1]] != tie_ceiling:
        gap = min(gap, values[order[count - 1]] - values[order[count]])
    if strategy == "low_confidence_dynamic":
        above = [position for position in order if confidence[position] > threshold]
        from_threshold = min(abs(value - threshold) for value in confidence.values())
        if len(above) >= count:
            return above, from_threshold
        gap = min(gap, from_threshold)
    return order[:count], gap


def decode_slowly(
    model: MRPForDiffusionLM,
    prompt: list[int],
    max_new_tokens: int,
    *,
    mode: str | None = None,
    lookahead_steps: int = 3,
    strategy: str = "low_confidence_static",
    block_length: int | None = None,
    denoising_steps: int | None = None,
    threshold: float = 0.9,
    entropy_bound: float = 0.1,
    tie_ceiling: float | None = None,
    seed: int = 7,
    remask_threshold: float | None = None,
    eos: Sequence[int] = (),
    suppressed: Sequence[int] = (),
    choose: Choose = greedy,
) -> Decoded:
    """Decode one prompt in mode None, "direct" or "remask"."""
    mask = model.config.mask_token_id
    block_length = block_length or model.config.block_length or max_new_tokens
    remask_threshold = threshold if remask_threshold is None else remask_threshold
    limit = len(prompt) + max_new_tokens
    ids, result = list(prompt), Decoded([])
    gaps = [math.inf]

    origin = len(prompt) if is_bidirectional(model) else 0
    for block in range((len(prompt) - origin) // block_length, -(-(limit - origin) // block_length)):
        start, end = origin + block * block_length, origin + (block + 1) * block_length
        if is_bidirectional(model):  # the whole canvas is there from the first step on, and ends with the answer
            ids += [mask] * (limit - len(ids))
            end = min(end, limit)
        masked = set(range(max(start, len(prompt)), end))
        ids += [mask] * (end - len(ids))
        step = 0
        while masked:
            clean = current = hidden_of(model, ids, block_length)
            result.forwards += 1
            for lookahead in range(1 + (lookahead_steps if mode == "direct" else 0)):
                if not masked:
                    break
                if lookahead > 0:
                    current = after_lookahead(model, ids, clean, current, start, block_length)
                    result.head_forwards += 1
                logits = logits_of(model, current, suppressed)
                chosen, confidence, entropy, lot = {}, {}, {}, {}
                for position in sorted(masked):
                    chosen[position], gap = choose(logits[position], position, step)
                    confidence[position] = float(logits[position].double().softmax(-1)[chosen[position]])
                    gaps.append(gap)
                    probabilities = logits[position].double().softmax(-1).tolist()
                    entropy[position] = -sum(p * math.log(p) for p in probabilities if p > 0)
                    lot[position] = uniform(seed, position, step, logits.shape[-1])
                revealed, gap = positions_of_step(
                    strategy,
                    confidence,
                    step,
                    block_length,
                    denoising_steps or block_length,
                    threshold,
                    entropy,
                    lot,
                    entropy_bound,
                    tie_ceiling,
                )
                gaps.append(gap)
                for position in revealed:
                    ids[position] = chosen[position]
                    masked.remove(position)
                step += 1
            if mode == "remask" and len(revealed) > 1:
                current = after_lookahead(model, ids, clean, current, start, block_length)
                result.head_forwards += 1
                probabilities = logits_of(model, current, suppressed).double().softmax(-1)
                corrected = {position: float(probabilities[position, ids[position]]) for position in revealed}
                surest, gap = largest(corrected)
                gaps += [gap, *(abs(value - remask_threshold) for value in corrected.values())]
                for position in revealed:
                    if position != surest and corrected[position] < remask_threshold:
                        ids[position] = mask
                        masked.add(position)
                        result.remasked += 1
            ends = [p for p in range(len(prompt), min(limit, end)) if p not in masked and ids[p] in eos]
            if ends and not any(position < ends[0] for position in masked):
                return finish(result, ids[len(prompt) : ends[0] + 1], gaps)
    return finish(result, ids[len(prompt) : limit], gaps)


def finish(result: Decoded, tokens: list[int], gaps: list[float]) -> Decoded:
    result.tokens, result.gap = tokens, min(gaps)
    return result
