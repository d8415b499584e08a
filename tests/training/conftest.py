"""Slow references of the training objective: one row at a time, without padding, cache or compaction."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training.noise import Noise, draw_noise


def make_items(count: int, seed: int = 0, vocab_size: int = 60, longest: int = 30) -> list[dict[str, list[int]]]:
    """Dataset items of various lengths, most with a prompt."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    items = []
    for _ in range(count):
        ids = [draw(0, vocab_size) for _ in range(draw(6, longest))]
        prompt = draw(0, 6)
        items.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return items


def noise_of(model: MRPForDiffusionLM, batch: dict[str, Tensor], steps: int, **settings: Any) -> Noise:
    return draw_noise(
        batch["input_ids"],
        batch["labels"] != -100,
        batch["sample_index"],
        block_length=model.config.block_length,
        mask_token_id=model.config.mask_token_id,
        num_lookahead_steps=steps,
        **({"seed": 3, "epoch": 0} | settings),
    )


def full_mask(length: int, block_length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask (1, 1, 2 n, 2 n) of [clean | noisy], entry by entry from the rule's words."""
    visible = torch.zeros(2 * length, 2 * length, dtype=torch.bool)
    for query in range(2 * length):
        for key in range(2 * length):
            query_block, key_block = (place % length // block_length for place in (query, key))
            query_noisy, key_noisy = query >= length, key >= length
            earlier_clean = not key_noisy and key_block < query_block
            own = query_noisy == key_noisy and query_block == key_block
            visible[query, key] = earlier_clean or own
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]


class RowReference(NamedTuple):
    clean: Tensor  # (n, hidden)
    noisy: list[Tensor]  # K + 1 of (n, hidden)
    accumulators: list[Tensor]  # K of (n, hidden)
    loss: Tensor  # weighted sum, averaged over steps
    sums: list[list[float]]  # K of [positions, KL before, KL after]


def reference_row(
    model: MRPForDiffusionLM, ids: Tensor, states: Tensor, masked: Tensor, p_mask: Tensor
) -> RowReference:
    """One row (n,) with states (K + 1, n): a full pass over [clean | noisy] for each state and each head step."""
    length = len(ids)
    mask = full_mask(length, model.config.block_length, model.dtype)
    positions = torch.arange(length).repeat(2)[None]
    with torch.no_grad():
        passes = [model.backbone_hidden_states(torch.cat([ids, state])[None], positions, mask)[0] for state in states]
    clean, noisy = passes[0][:length], [hidden[length:] for hidden in passes]
    accumulators, accumulator = [], noisy[0]
    for state in states[1:]:
        both = torch.cat([clean, accumulator])[None]
        accumulator = model.mrp_step(torch.cat([ids, state])[None], both, positions, mask)[0, length:]
        accumulators.append(accumulator)

    steps = len(accumulators)
    loss = torch.zeros(())
    sums = []
    before = model.project(noisy[0]).log_softmax(-1)
    for k in range(1, steps + 1):
        after = model.project(accumulators[k - 1]).log_softmax(-1)
        target = model.project(noisy[k]).log_softmax(-1)
        terms = [0.0, 0.0, 0.0]
        for place in range(length):
            if masked[k, place]:
                kl = (target[place].exp() * (target[place] - after[place])).sum()
                loss = loss + kl / p_mask[place] / steps
                terms[0] += 1
                terms[1] += float((target[place].exp() * (target[place] - before[place])).sum())
                terms[2] += float(kl.detach())
        sums.append(terms)
    return RowReference(clean, noisy, accumulators, loss, sums)


def reference_rows(model: MRPForDiffusionLM, batch: dict[str, Tensor], noise: Noise) -> list[RowReference]:
    rows = []
    for row, length in enumerate(batch["lengths"].tolist()):
        parts = (noise.states[:, row, :length], noise.masked[:, row, :length], noise.p_mask[row, :length])
        rows.append(reference_row(model, batch["input_ids"][row, :length], *parts))
    return rows


@pytest.fixture(scope="session")
def items() -> Callable[..., list[dict[str, list[int]]]]:
    return make_items


@pytest.fixture(scope="session")
def draw() -> Callable[..., Noise]:
    return noise_of


@pytest.fixture(scope="session")
def reference() -> Callable[..., list[RowReference]]:
    return reference_rows
