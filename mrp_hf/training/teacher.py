"""The teacher: hidden states of the frozen backbone on the clean text and on every noisy state.

One pass over the clean copy records its keys and values, and all K + 1 noisy copies read them: (K + 2) n tokens where
separate passes over [clean | noisy] compute 2 (K + 1) n. A bidirectional backbone has no clean copy to share: its
passes are (K + 1) n tokens anyway.

All hidden states are aligned: the one at a place is what predicts the token there, also where logits are shifted.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mrp_hf.generation.alignment_mrp import align
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training.layout import Layout
from mrp_hf.training.prefix import PrefixCache


class TeacherStates(NamedTuple):
    """Inputs of the LM head, without gradients."""

    clean: Tensor | None  # (rows, width, hidden); None with a bidirectional backbone
    noisy: list[Tensor]  # K + 1 of shape (rows, m, hidden)


@torch.no_grad()
def run_teacher(model: MRPForDiffusionLM, layout: Layout, clean_ids: Tensor, noisy_ids: Tensor) -> TeacherStates:
    """Run the backbone on the clean copy and, behind its keys and values, on each noisy copy.

    Args:
        clean_ids (`Tensor` of shape (rows, width)): clean ids, right-padded.
        noisy_ids (`Tensor` of shape (K + 1, rows, m)): the noisy copies' ids.
    """
    clean, cache = None, None
    if layout.clean_mask is not None:
        cache = PrefixCache()
        clean = model.backbone_hidden_states(clean_ids, layout.clean_position_ids, layout.clean_mask, cache)
    noisy = [model.backbone_hidden_states(ids, layout.columns, layout.noisy_mask, cache) for ids in noisy_ids]
    if model.config.logit_shift:
        noisy = [_align(hidden, clean, layout.columns, model.config.block_length) for hidden in noisy]
        clean = None if clean is None else align(clean)
    return TeacherStates(clean, noisy)


def run_student(
    model: MRPForDiffusionLM, layout: Layout, clean_ids: Tensor, noisy_ids: Tensor, teacher: TeacherStates
) -> Iterator[Tensor]:
    """Run the head, yielding the accumulator (rows, m, hidden) of lookahead steps 1 to K.

    Step k reads the ids of state k and the accumulator of step k - 1, the first one the backbone's hidden states of
    state 0. All steps see the head's keys and values of the clean copy.
    """
    cache = None
    if layout.clean_mask is not None:
        assert teacher.clean is not None
        cache = PrefixCache()
        model.mrp_step(clean_ids, teacher.clean, layout.clean_position_ids, layout.clean_mask, cache)
    accumulator = teacher.noisy[0]
    for ids in noisy_ids[1:]:
        accumulator = model.mrp_step(ids, accumulator, layout.columns, layout.noisy_mask, cache)
        yield accumulator


def _align(noisy: Tensor, clean: Tensor | None, columns: Tensor, block_length: int | None) -> Tensor:
    """What predicts the tokens of a noisy copy: its own hidden states one place before, and at the start of a block the
    clean copy's, because the block before stands there in its finished form."""
    shifted = align(noisy)
    if clean is None:
        return shifted
    assert block_length is not None
    before = clean.gather(1, (columns - 1).clamp(min=0).unsqueeze(-1).expand_as(noisy))
    at_start = (columns % block_length == 0).unsqueeze(-1)
    return torch.where((columns == 0).unsqueeze(-1), noisy, torch.where(at_start, before, shifted))
