"""The teacher: hidden states of the frozen backbone on the clean text and on every noisy state.

One pass over the clean copy records its keys and values, and all K + 1 noisy copies read them: (K + 2) n tokens where
separate passes over [clean | noisy] compute 2 (K + 1) n.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training.layout import Layout
from mrp_hf.training.prefix import PrefixCache


class TeacherStates(NamedTuple):
    """Inputs of the LM head, without gradients."""

    clean: Tensor  # (rows, width, hidden)
    noisy: list[Tensor]  # K + 1 of shape (rows, m, hidden)


@torch.no_grad()
def run_teacher(model: MRPForDiffusionLM, layout: Layout, clean_ids: Tensor, noisy_ids: Tensor) -> TeacherStates:
    """Run the backbone on the clean copy and, behind its keys and values, on each noisy copy.

    Args:
        clean_ids (`Tensor` of shape (rows, width)): clean ids, right-padded.
        noisy_ids (`Tensor` of shape (K + 1, rows, m)): the noisy copies' ids.
    """
    cache = PrefixCache()
    clean = model.backbone_hidden_states(clean_ids, layout.clean_position_ids, layout.clean_mask, cache)
    noisy = [model.backbone_hidden_states(ids, layout.columns, layout.noisy_mask, cache) for ids in noisy_ids]
    return TeacherStates(clean, noisy)


def run_student(
    model: MRPForDiffusionLM, layout: Layout, clean_ids: Tensor, noisy_ids: Tensor, teacher: TeacherStates
) -> Iterator[Tensor]:
    """Run the head, yielding the accumulator (rows, m, hidden) of lookahead steps 1 to K.

    Step k reads the ids of state k and the accumulator of step k - 1, the first one the backbone's hidden states of
    state 0. All steps see the head's keys and values of the clean copy.
    """
    cache = PrefixCache()
    model.mrp_step(clean_ids, teacher.clean, layout.clean_position_ids, layout.clean_mask, cache)
    accumulator = teacher.noisy[0]
    for ids in noisy_ids[1:]:
        accumulator = model.mrp_step(ids, accumulator, layout.columns, layout.noisy_mask, cache)
        yield accumulator
