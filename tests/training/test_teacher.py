"""Sharing the clean pass changes nothing: every copy gets what a full pass over [clean | noisy] gives it."""

import pytest
import torch

from mrp_hf.training.collator import DataCollatorForMRP
from mrp_hf.training.layout import build_layout
from mrp_hf.training.prefix import PrefixCache
from mrp_hf.training.teacher import run_student, run_teacher


def batch_of(rows, block_length):
    features = [item | {"sample_index": number} for number, item in enumerate(rows)]
    return DataCollatorForMRP(62, block_length)(features)


@pytest.mark.parametrize("block_length", [1, 4, 8])
@pytest.mark.parametrize("prediction", ["residual", "direct"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_equal_to_separate_full_passes(tiny_model, items, draw, reference, block_length, prediction, attention):
    model = tiny_model(
        block_length=block_length, num_mrp_layers=2, mrp_prediction=prediction, attn_implementation=attention
    ).double()
    tolerance = 1e-9 if attention == "sdpa" else 1e-5  # eager attention takes its softmax in float32
    batch = batch_of(items(5), block_length)
    noise = draw(model, batch, steps=3, reveal_max=2)
    layout = build_layout(batch["lengths"], noise.masked[1], block_length, model.dtype)
    noisy_ids = layout.gather(noise.states)
    teacher = run_teacher(model, layout, batch["input_ids"], noisy_ids)
    accumulators = list(run_student(model, layout, batch["input_ids"], noisy_ids, teacher))
    supervised = layout.gather(noise.masked[1])
    for row, expected in enumerate(reference(model, batch, noise)):
        length = int(batch["lengths"][row])
        torch.testing.assert_close(teacher.clean[row, :length], expected.clean, atol=tolerance, rtol=0)
        at = supervised[row].nonzero().squeeze(-1)
        places = layout.columns[row, at]
        for found, wanted in zip(teacher.noisy, expected.noisy, strict=True):
            torch.testing.assert_close(found[row, at], wanted[places], atol=tolerance, rtol=0)
        for found, wanted in zip(accumulators, expected.accumulators, strict=True):
            torch.testing.assert_close(found[row, at], wanted[places], atol=tolerance, rtol=0)


def test_teacher_takes_no_gradient_and_student_does(tiny_model, items, draw):
    model = tiny_model()
    batch = batch_of(items(3), 4)
    noise = draw(model, batch, steps=2)
    layout = build_layout(batch["lengths"], noise.masked[1], 4, model.dtype)
    noisy_ids = layout.gather(noise.states)
    teacher = run_teacher(model, layout, batch["input_ids"], noisy_ids)
    assert not teacher.clean.requires_grad
    assert not any(hidden.requires_grad for hidden in teacher.noisy)
    assert all(states.requires_grad for states in run_student(model, layout, batch["input_ids"], noisy_ids, teacher))


def test_layout_keeps_supervised_blocks_only():
    supervised = torch.zeros(3, 12, dtype=torch.bool)
    supervised[0, [5, 9]] = True
    supervised[1, 2] = True
    layout = build_layout(torch.tensor([10, 12, 4]), supervised, 4, torch.float32)
    assert layout.columns.shape == (3, 8)
    assert layout.columns[0].tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert layout.columns[1, :4].tolist() == [0, 1, 2, 3]
    visible = layout.noisy_mask[:, 0] == 0
    # Row 0, its second block at 8 and 9: clean tokens of the blocks before, and itself without padding.
    assert visible[0, 4].nonzero().squeeze(-1).tolist() == [*range(8), 12 + 4, 12 + 5]
    # Row 1 uses one block, the first; the rest of its columns is padding that sees padding.
    assert visible[1, 0].nonzero().squeeze(-1).tolist() == [12, 13, 14, 15]
    assert visible[1, 4].nonzero().squeeze(-1).tolist() == [16, 17, 18, 19]
    assert visible.any(-1).all()


def test_layout_without_anything_supervised_is_one_block_of_padding():
    layout = build_layout(torch.tensor([5, 8]), torch.zeros(2, 8, dtype=torch.bool), 4, torch.float32)
    assert layout.columns.shape == (2, 4)
    assert (layout.noisy_mask == 0).any(-1).all()


def test_prefix_is_recorded_once_and_carries_gradients():
    cache = PrefixCache()
    key, value = (torch.randn(2, 1, 3, 4, requires_grad=True) for _ in range(2))
    assert cache.update(key, value, 0) == (key, value)
    for width in (2, 5):
        own = torch.randn(2, 1, width, 4)
        keys, values = cache.update(own, own, 0)
        assert torch.equal(keys, torch.cat([key, own], dim=2))
        assert torch.equal(values, torch.cat([value, own], dim=2))
        assert cache.get_seq_length() == 3
        keys.sum().backward()
    assert torch.equal(key.grad, torch.full_like(key, 2))
