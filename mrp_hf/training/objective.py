"""The training objective: KL(softmax B_k ‖ softmax(A + C_1 + … + C_k)) on the positions that state k still masks.

B_k are the frozen backbone's logits on state k, A those on state 0. A position counts 1 / p_mask; the sum is divided by
the number of answer tokens and averaged over the K lookahead steps (arXiv 2605.18817; decision 26). Which of residual
and direct prediction is trained is the model's own affair: `mrp_step` gives the accumulator accordingly.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training.layout import build_layout
from mrp_hf.training.noise import Noise
from mrp_hf.training.teacher import run_student, run_teacher

# Logits that exist at a time, in elements; a handful of float32 tensors of this size (128 MiB) live together.
CHUNK_ELEMENTS = 2**25


class ObjectiveOutput(NamedTuple):
    """Sums per row; whoever calls divides, because the normaliser spans processes and accumulated batches."""

    loss: Tensor  # (rows,), with gradient: weighted KL over supervised positions, averaged over lookahead steps
    sums: Tensor  # (rows, K, 3): supervised positions, KL(B ‖ A) and KL(B ‖ A + C) over them, unweighted


def mrp_objective(model: MRPForDiffusionLM, input_ids: Tensor, lengths: Tensor, noise: Noise) -> ObjectiveOutput:
    """Teacher pass, K head steps and the loss of a right-padded batch.

    Args:
        input_ids (`Tensor` of shape (rows, width)): clean ids; the width is a multiple of the block length.
        lengths (`Tensor` of shape (rows,)): real tokens of each row.
        noise (`Noise`): from `draw_noise`.
    """
    rows = len(input_ids)
    bidirectional = model.config.attention_pattern == "bidirectional"
    block_length = None if bidirectional else model.config.block_length
    layout = build_layout(lengths, noise.masked[1], block_length, model.dtype)
    noisy_ids = layout.gather(noise.states)
    # A selected block's places, not every place: padding behind a row's selected blocks repeats some unselected block,
    # in which state 1 masks nothing.
    masked = layout.gather(noise.masked[1:])
    weights = layout.gather(noise.p_mask).reciprocal().flatten()
    points = [state.flatten().nonzero().squeeze(-1) for state in masked]

    teacher = run_teacher(model, layout, input_ids, noisy_ids)
    before = teacher.noisy[0].flatten(0, 1)
    chunk = max(1, CHUNK_ELEMENTS // model.config.vocab_size)
    loss = torch.zeros(rows, device=input_ids.device)
    sums = []
    for k, accumulator in enumerate(run_student(model, layout, input_ids, noisy_ids, teacher), start=1):
        at = points[k - 1]
        row = at // layout.columns.shape[1]
        after_kl, before_kl = position_kl(
            accumulator.flatten(0, 1)[at], teacher.noisy[k].flatten(0, 1)[at], before[at], model.project, chunk
        )
        loss = loss.index_add(0, row, after_kl * weights[at])
        terms = torch.stack([torch.ones_like(before_kl), before_kl, after_kl.detach()], dim=-1)
        sums.append(terms.new_zeros(rows, 3).index_add(0, row, terms))
    return ObjectiveOutput(loss / len(points), torch.stack(sums, dim=1))


def position_kl(
    student: Tensor, teacher: Tensor, before: Tensor, project: Callable[[Tensor], Tensor], chunk: int
) -> tuple[Tensor, Tensor]:
    """KL(teacher ‖ student) and KL(teacher ‖ before) of each position, float32 (positions,).

    Args:
        student, teacher, before (`Tensor` of shape (positions, hidden)): inputs of the LM head. Only `student` takes a
            gradient, through the first result.
        project (`Callable`): the LM head; each row of its output depends on the same row of its input.
        chunk (`int`): positions whose logits exist at a time.
    """
    return _PositionKL.apply(student, teacher, before, project, chunk)


class _PositionKL(torch.autograd.Function):
    """Computes the gradient with the value, chunk by chunk, so that no logits outlive their chunk."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, before: Tensor, project: Callable[[Tensor], Tensor], size: int
    ) -> tuple[Tensor, Tensor]:
        wants_gradient = ctx.needs_input_grad[0]
        after_kl, before_kl = student.new_empty(2, len(student), dtype=torch.float32)
        gradient = torch.empty_like(student) if wants_gradient else None
        for start in range(0, len(student), size):
            chunk = slice(start, start + size)
            target = project(teacher[chunk]).float().log_softmax(-1)
            probability = target.exp()
            before_kl[chunk] = _kl(probability, target, project(before[chunk]).float().log_softmax(-1))
            with torch.set_grad_enabled(wants_gradient):
                leaf = student[chunk].detach().requires_grad_(wants_gradient)
                logits = project(leaf)
            predicted = logits.detach().float().log_softmax(-1)
            after_kl[chunk] = _kl(probability, target, predicted)
            if gradient is not None:
                slope = predicted.exp_().sub_(probability)  # of the KL in the student's logits, in float32
                (gradient[chunk],) = torch.autograd.grad(logits, leaf, slope.to(logits.dtype))
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(before_kl)
        return after_kl, before_kl

    @staticmethod
    def backward(ctx: Any, after_gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * after_gradient.unsqueeze(-1)).to(gradient.dtype), None, None, None, None


def _kl(probability: Tensor, target: Tensor, predicted: Tensor) -> Tensor:
    """Σ p (log p - log q) over the vocabulary."""
    return (probability * (target - predicted)).sum(-1)
