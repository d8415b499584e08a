"""Noise: from clean text to a noisy state and the K states that follow it as tokens are revealed.

Every draw is keyed by (seed, epoch, sample index, place in the sample) and by nothing else. So a sample gets the same
noise in any batch, on any rank and device and after a resume, and no generator has a state to keep.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mrp_hf.generation.sampling_mrp import fold, keyed_uniform

EVALUATION_EPOCH = -1  # evaluation draws the same noise at every checkpoint
MIN_MASK_PROBABILITY = 1e-3  # bounds the loss weight 1 / p_mask

_PROBABILITY, _MASK, _ORDER, _COUNT = range(4)  # independent streams


class Noise(NamedTuple):
    """K + 1 states of each row, from the noisiest on.

    State 0 is what the backbone's logits A come from; state k is what is left of it after k reveals of true tokens.
    """

    states: Tensor  # (K + 1, rows, width): ids
    masked: Tensor  # (K + 1, rows, width), bool: which of them are masked; known by place, not by comparing ids
    p_mask: Tensor  # (rows, width): each place's masking probability, that of its block


def draw_noise(
    input_ids: Tensor,
    answer: Tensor,
    sample_index: Tensor,
    *,
    seed: int,
    epoch: int,
    block_length: int,
    mask_token_id: int,
    num_lookahead_steps: int,
    reveal_min: int = 1,
    reveal_max: int = 1,
) -> Noise:
    """Mask answer tokens with a probability drawn per block from U(0, 1), then reveal some per block and step.

    Args:
        input_ids (`Tensor` of shape (rows, width)): clean ids; the width is a multiple of `block_length` (the width
            itself gives each row one probability, whatever the batch's width is).
        answer (`Tensor` of shape (rows, width)): bool; the other places are never masked.
        sample_index (`Tensor` of shape (rows,)): non-negative number of each row in its dataset.
        seed, epoch (`int`): with the sample's number, what the noise is a function of; the epoch is at least -1.
        reveal_min, reveal_max (`int`): how many tokens a step reveals in a block, uniform between the two and capped
            by the masks left. The published recipe reveals one.
    """
    rows, width = input_ids.shape
    device = input_ids.device
    blocks = torch.arange(width // block_length, device=device)
    places = torch.arange(width, device=device)
    key = fold(fold(torch.zeros_like(sample_index), seed), epoch + 1)
    key = fold(key, sample_index).unsqueeze(-1)

    probability = keyed_uniform(fold(fold(key, _PROBABILITY), blocks)).clamp(min=MIN_MASK_PROBABILITY)
    p_mask = probability.repeat_interleave(block_length, dim=1)
    masked = answer & (keyed_uniform(fold(fold(key, _MASK), places)) < p_mask)

    # The order of reveals is drawn once: a place's rank among its block's masked places says in which step its turn is.
    score = keyed_uniform(fold(fold(key, _ORDER), places)).where(masked, torch.inf).view(rows, -1, block_length)
    rank = score.argsort(dim=-1, stable=True).argsort(-1).view(rows, width)

    steps = torch.arange(num_lookahead_steps, device=device).unsqueeze(-1)
    uniform = keyed_uniform(fold(fold(fold(key, _COUNT).unsqueeze(-1), steps), blocks))  # (rows, K, blocks)
    counts = reveal_min + (uniform * (reveal_max - reveal_min + 1)).long()
    revealed = counts.cumsum(1).repeat_interleave(block_length, dim=-1).transpose(0, 1)
    left = torch.cat([masked.unsqueeze(0), masked & (rank >= revealed)])
    return Noise(input_ids.masked_fill(left, mask_token_id), left, p_mask)
