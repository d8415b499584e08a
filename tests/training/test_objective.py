"""Loss, gradient and sums against a loop over positions."""

import pytest
import torch
from torch.nn.functional import kl_div

from mrp_hf.training import objective
from mrp_hf.training.collator import DataCollatorForMRP
from mrp_hf.training.metrics import lookahead_metrics
from mrp_hf.training.objective import mrp_objective, position_kl


def batch_of(rows, block_length=4):
    features = [item | {"sample_index": number} for number, item in enumerate(rows)]
    return DataCollatorForMRP(62, block_length)(features)


def head_gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.mrp_head.parameters()])


@pytest.mark.parametrize("prediction", ["residual", "direct"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("chunk", [2**25, 64 * 3])
def test_equal_to_a_loop_over_positions(tiny_model, items, draw, reference, monkeypatch, prediction, steps, chunk):
    monkeypatch.setattr(objective, "CHUNK_ELEMENTS", chunk)
    model = tiny_model(num_mrp_layers=2, mrp_prediction=prediction)
    batch = batch_of(items(5))
    noise = draw(model, batch, steps=steps, reveal_max=2)
    output = mrp_objective(model, batch["input_ids"], batch["lengths"], noise)
    output.loss.sum().backward()
    gradient = head_gradient(model)
    assert all(parameter.grad is None for parameter in model.backbone.parameters())

    model.zero_grad()
    rows = reference(model, batch, noise)
    torch.testing.assert_close(output.loss, torch.stack([row.loss for row in rows]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.sums, torch.tensor([row.sums for row in rows]), rtol=1e-4, atol=1e-4)
    torch.stack([row.loss for row in rows]).sum().backward()
    wanted = head_gradient(model)
    assert (gradient - wanted).norm() <= 1e-4 * wanted.norm()
    assert wanted.norm() > 1


def test_nothing_masked_gives_zero_loss_and_a_gradient_of_zeros(tiny_model, items, draw):
    model = tiny_model()
    batch = batch_of(items(2))
    noise = draw(model, batch, steps=2)
    noise = noise._replace(masked=torch.zeros_like(noise.masked), states=batch["input_ids"].expand(3, -1, -1))
    output = mrp_objective(model, batch["input_ids"], batch["lengths"], noise)
    assert output.loss.tolist() == [0, 0]
    assert output.sums.abs().sum() == 0
    output.loss.sum().backward()
    assert head_gradient(model).abs().sum() == 0  # every parameter has one, on every process


def test_a_head_of_zeros_leaves_everything_to_explain(tiny_model, items, draw):
    model = tiny_model()
    torch.nn.init.zeros_(model.mrp_head.norm.weight)
    batch = batch_of(items(6))
    noise = draw(model, batch, steps=2)
    sums = mrp_objective(model, batch["input_ids"], batch["lengths"], noise).sums.sum(0)
    assert torch.equal(sums[:, 1], sums[:, 2])
    metrics = lookahead_metrics(sums)
    assert metrics["residual_explained_1"] == metrics["residual_explained_2"] == 0
    assert metrics["kl_before_2"] > metrics["kl_before_1"] > 0


@pytest.mark.parametrize("chunk", [1, 2, 7, 100])
def test_position_kl_is_kl_divergence(chunk):
    generator = torch.Generator().manual_seed(0)
    student, teacher, before = (torch.randn(7, 12, generator=generator) for _ in range(3))
    weight = torch.randn(50, 12, generator=generator)
    scale = torch.rand(7, generator=generator)
    student.requires_grad_()
    after_kl, before_kl = position_kl(student, teacher, before, lambda hidden: hidden @ weight.T, chunk)
    (after_kl * scale).sum().backward()
    found, student.grad = student.grad, None

    target, log_a, log_c = ((hidden @ weight.T).log_softmax(-1) for hidden in (teacher, before, student))
    wanted = kl_div(log_c, target, log_target=True, reduction="none").sum(-1)
    (wanted * scale).sum().backward()
    torch.testing.assert_close(after_kl, wanted)
    torch.testing.assert_close(before_kl, kl_div(log_a, target, log_target=True, reduction="none").sum(-1))
    torch.testing.assert_close(found, student.grad)
    assert not before_kl.requires_grad


def test_logits_are_projected_at_supervised_positions_only(tiny_model, items, draw, monkeypatch):
    model = tiny_model()
    batch = batch_of(items(5))
    noise = draw(model, batch, steps=2)
    project, seen = model.project, []
    monkeypatch.setattr(model, "project", lambda hidden: seen.append(len(hidden)) or project(hidden))
    mrp_objective(model, batch["input_ids"], batch["lengths"], noise)
    assert sum(seen) == 3 * int(noise.masked[1:].sum())  # A, B and A + C


def test_half_precision_sums_in_float32(tiny_model, items, draw):
    model = tiny_model()
    batch = batch_of(items(6))
    noise = draw(model, batch, steps=2)
    exact = mrp_objective(model, batch["input_ids"], batch["lengths"], noise)
    rounded = mrp_objective(model.to(torch.bfloat16), batch["input_ids"], batch["lengths"], noise)
    assert rounded.loss.dtype == rounded.sums.dtype == torch.float32
    torch.testing.assert_close(rounded.sums, exact.sums, rtol=0.2, atol=0.5)


def test_metrics_are_means_per_position():
    metrics = lookahead_metrics(torch.tensor([[4.0, 8.0, 2.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert metrics == {
        "kl_before_1": 2.0,
        "kl_after_1": 0.5,
        "residual_explained_1": 0.75,
        "kl_before_2": 0.0,
        "kl_after_2": 0.0,
    }
