import pytest
import torch
from safetensors.torch import load_file
from transformers import DynamicCache

from mrp_hf import MRPForDiffusionLM


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def published(request, fixtures):
    """The published-layout fixture in our names, and the outputs that the published code gave."""
    folder = fixtures / "sdar-mrp-official"
    model = MRPForDiffusionLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=request.param)
    return model, load_file(folder / "expected.safetensors")


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_head_reproduces_the_published_implementation(published):
    model, expected = published
    output = model(expected["ids_before"], revealed_ids=expected["ids_step1"])
    assert_close(output.logits, expected["logits_before"])
    assert_close(output.last_hidden_state, expected["hidden_before"])
    assert_close(output.residual_logits, expected["residual_logits_step1"])
    assert_close(output.mrp_hidden_state, expected["hidden_before"] + expected["head_hidden_step1"])
    assert_close(output.logits + output.residual_logits, expected["corrected_logits_step1"])


@torch.no_grad()
def test_two_lookahead_steps_accumulate(published):
    model, expected = published
    position_ids, mask = model._positions_and_mask(expected["ids_before"], None, None, None)
    first = model.mrp_step(expected["ids_step1"], expected["hidden_before"], position_ids, mask)
    second = model.mrp_step(expected["ids_step2"], first, position_ids, mask)
    assert_close(first - expected["hidden_before"], expected["head_hidden_step1"])
    assert_close(second - first, expected["head_hidden_step2"])
    # The LM head is linear: one projection of the accumulator is the sum of all logits.
    assert_close(model.project(second), expected["corrected_logits_step2"])


@torch.no_grad()
def test_head_with_its_own_cache_block_by_block(published):
    model, expected = published
    ids, hidden = expected["ids_step1"], expected["hidden_before"]
    position_ids, mask = model._positions_and_mask(ids, None, None, None)
    cache = DynamicCache()
    parts = []
    for start in range(0, ids.shape[1], model.config.block_length):
        rows = slice(start, start + model.config.block_length)
        block_mask = mask[:, :, rows, : rows.stop]
        parts.append(model.mrp_step(ids[:, rows], hidden[:, rows], position_ids[:, rows], block_mask, cache))
    assert len(cache.layers) == model.config.num_mrp_layers
    assert_close(torch.cat(parts, 1), model.mrp_step(ids, hidden, position_ids, mask))


def test_names_of_tensors_follow_the_published_checkpoints(tiny_model):
    names = {name for name, _ in tiny_model(num_mrp_layers=1).mrp_head.named_parameters()}
    layer = {name.removeprefix("layers.0.") for name in names if name.startswith("layers.")}
    assert {name for name in names if not name.startswith("layers.")} == {
        "enorm.weight",
        "hnorm.weight",
        "eh_proj.weight",
        "norm.weight",
    }
    assert {"self_attn.q_proj.weight", "self_attn.k_norm.weight", "mlp.down_proj.weight"} < layer
    assert len(layer) == 11


def test_embedding_stands_first_in_the_projection(tiny_model):
    head = tiny_model(hidden_size=32).mrp_head
    assert head.eh_proj.weight.shape == (32, 64)
    with torch.no_grad():
        head.eh_proj.weight[:, :32] = 0  # the half that reads embeddings
        hidden, positions, mask = torch.randn(1, 4, 32), torch.arange(4)[None], torch.zeros(1, 1, 4, 4)
        first, second = (head(torch.randn(1, 4, 32), hidden, positions, mask) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("std", [0.02, 0.2])
def test_fresh_head_starts_from_the_asked_deviation(tiny_model, std):
    head = tiny_model(mrp_initializer_range=std, hidden_size=64).mrp_head
    for name, parameter in head.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            assert parameter.std().item() == pytest.approx(std, rel=0.1), name


@torch.no_grad()
def test_head_may_start_from_the_last_layers_of_its_backbone(tiny_model):
    model = tiny_model(num_hidden_layers=3, num_mrp_layers=2, head_initialization="backbone")
    for own, copied in zip(model.mrp_head.layers, model.backbone.model.layers[1:], strict=True):
        for name, parameter in own.named_parameters():
            assert torch.equal(parameter, copied.get_parameter(name)), name
            assert parameter.requires_grad
            assert parameter.data_ptr() != copied.get_parameter(name).data_ptr()
    first, second = torch.randn(2, 5, model.config.hidden_size)
    torch.testing.assert_close(model.mrp_head.eh_proj(torch.cat([first, second], dim=-1)), first + second)


def test_wrong_initialization_is_refused(tiny_model):
    with pytest.raises(ValueError, match=r"`head_initialization` must be one of .* got 'zeros'"):
        tiny_model(head_initialization="zeros")
    with pytest.raises(ValueError, match="`num_mrp_layers` is 3, but the backbone has 2 layers"):
        tiny_model(num_hidden_layers=2, num_mrp_layers=3, head_initialization="backbone")


def test_head_may_be_deeper_than_its_backbone(tiny_model):
    model = tiny_model(num_mrp_layers=5, num_hidden_layers=2)
    assert model(torch.tensor([[1, 2, 3]]), revealed_ids=torch.tensor([[1, 2, 4]])).residual_logits.isfinite().all()


@torch.no_grad()
def test_direct_head_gives_the_next_logits_alone(tiny_model):
    residual, direct = (tiny_model(mrp_prediction=kind) for kind in ("residual", "direct"))
    ids, revealed = torch.tensor([[1, 2, 63, 63]]), torch.tensor([[1, 2, 5, 63]])
    first, second = residual(ids, revealed_ids=revealed), direct(ids, revealed_ids=revealed)
    assert torch.equal(first.residual_logits, second.residual_logits)
    assert torch.equal(direct.project(second.mrp_hidden_state), second.residual_logits)
    assert torch.equal(first.mrp_hidden_state, first.last_hidden_state + second.mrp_hidden_state)
