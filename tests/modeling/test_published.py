"""The published layout, `SDARMRPForCausalLM`, as `from_pretrained` reads it."""

import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mrp_hf import MRPForDiffusionLM, MRPGenerationConfig
from mrp_hf.modeling.published_mrp import is_published

HEAD = "mrp_modules.0.model."


@pytest.fixture
def folder(fixtures, tmp_path):
    """A function that copies the published fixture with config fields changed (`None` removes one) and tensors put in
    or, where they are `None`, taken out."""

    def make(name="sdar-mrp-3lyr", tensors=None, **fields):
        target = tmp_path / name
        shutil.copytree(fixtures / "sdar-mrp-official", target)
        config = json.loads((target / "config.json").read_text()) | fields
        config = {key: value for key, value in config.items() if value is not None}
        (target / "config.json").write_text(json.dumps(config))
        stored = load_file(target / "model.safetensors") | (tensors or {})
        stored = {key: value for key, value in stored.items() if value is not None}
        save_file(stored, target / "model.safetensors", {"format": "pt"})
        return target

    return make


def ours(name):
    """Our name of a published tensor."""
    return f"mrp_head.{name.removeprefix(HEAD)}" if name.startswith(HEAD) else f"backbone.{name}"


def assert_holds(model, folder):
    stored = {ours(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    state = model.state_dict()
    assert state.keys() == stored.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in stored.items())


def test_config_tensors_and_special_tokens(fixtures):
    folder = fixtures / "sdar-mrp-official"
    model = MRPForDiffusionLM.from_pretrained(folder)
    assert_holds(model, folder)
    config = model.config
    assert (config.block_length, config.mask_token_id, config.num_mrp_layers) == (8, 148, 3)
    assert (config.attention_pattern, config.logit_shift, config.mrp_prediction) == ("block_causal", False, "residual")
    assert config.mrp_head_trained
    assert config.backbone_name_or_path == str(folder)
    assert config.backbone_config.rope_parameters == {"rope_type": "default", "rope_theta": 1000000}
    assert type(model.generation_config) is MRPGenerationConfig
    generation = model.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 1, 0)
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())
    assert all(parameter.requires_grad for parameter in model.mrp_head.parameters())
    assert not model.training


@torch.no_grad()
def test_outputs_of_the_published_code(fixtures):
    folder = fixtures / "sdar-mrp-official"
    expected = load_file(folder / "expected.safetensors")
    model = MRPForDiffusionLM.from_pretrained(folder)
    output = model(expected["ids_before"], revealed_ids=expected["ids_step1"])
    for found, name in (
        (output.mrp_hidden_state - output.last_hidden_state, "head_hidden_step1"),
        (output.residual_logits, "residual_logits_step1"),
        (output.logits + output.residual_logits, "corrected_logits_step1"),
    ):
        torch.testing.assert_close(found, expected[name], atol=1e-4, rtol=0)


def test_a_full_save_is_of_our_layout(fixtures, tmp_path):
    model = MRPForDiffusionLM.from_pretrained(fixtures / "sdar-mrp-official")
    model.save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == model.state_dict().keys()
    again = MRPForDiffusionLM.from_pretrained(tmp_path)
    assert_holds(again, fixtures / "sdar-mrp-official")
    assert again.config.to_diff_dict() == model.config.to_diff_dict()


def test_shards_dtype_device_and_attention(folder):
    place = folder()
    tensors = load_file(place / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:40], "model-00002-of-00002.safetensors": names[40:]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, place / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, held in shards.items() for name in held}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    (place / "model.safetensors").unlink()
    model = MRPForDiffusionLM.from_pretrained(
        place, dtype=torch.bfloat16, device_map="cpu", attn_implementation="eager"
    )
    state = model.state_dict()
    assert all(torch.equal(state[ours(name)], tensor.to(torch.bfloat16)) for name, tensor in tensors.items())
    assert {part.config._attn_implementation for part in (model, model.backbone, model.mrp_head)} == {"eager"}


@pytest.mark.parametrize(
    ("name", "prediction"),
    [("sdar-4b-mrp-3lyr", "residual"), ("sdar-4b-mrp-3lyr-k2", "residual"), ("sdar-4b-mrp-3lyr-direct", "direct")],
)
def test_released_variants(folder, name, prediction):
    place = folder(name)
    model = MRPForDiffusionLM.from_pretrained(place)
    assert model.config.mrp_prediction == prediction
    assert_holds(model, place)
    ids = torch.tensor([[1, 2, 148, 4]])
    output = model(ids, revealed_ids=ids)
    residual = output.mrp_hidden_state - output.last_hidden_state
    hidden = output.mrp_hidden_state if prediction == "direct" else residual
    torch.testing.assert_close(model.project(hidden), output.residual_logits, atol=1e-5, rtol=0)


def test_what_the_caller_or_the_config_says_comes_before_the_name(folder):
    place = folder("renamed")
    assert MRPForDiffusionLM.from_pretrained(place, mrp_prediction="direct").config.mrp_prediction == "direct"
    place = folder("says-direct", mrp_prediction="direct", mrp_head_trained=False)
    config = MRPForDiffusionLM.from_pretrained(place).config
    assert (config.mrp_prediction, config.mrp_head_trained) == ("direct", False)
    config = MRPForDiffusionLM.from_pretrained(place, mrp_prediction="residual", block_length=4).config
    assert (config.mrp_prediction, config.block_length) == ("residual", 4)


def test_of_several_heads_the_first_is_loaded_as_upstream_runs_it(folder, caplog):
    first = {key: value for key, value in load_file(folder() / "model.safetensors").items() if key.startswith(HEAD)}
    second = {key.replace("mrp_modules.0", "mrp_modules.1"): value + 1 for key, value in first.items()}
    place = folder("two", tensors=second, num_mrp_heads=2)
    with caplog.at_level(logging.WARNING):
        model = MRPForDiffusionLM.from_pretrained(place)
    assert "num_mrp_heads=2: `mrp_modules.0` is loaded" in caplog.text
    assert all(torch.equal(model.state_dict()[ours(name)], tensor) for name, tensor in first.items())
    none = folder("none", tensors=dict.fromkeys(first), num_mrp_heads=0)
    model = MRPForDiffusionLM.from_pretrained(none)
    assert model.mrp_head is None
    assert_holds(model, none)


def test_numbers_that_the_config_leaves_out_are_those_of_the_published_config_class(folder):
    first = load_file(folder() / "model.safetensors")
    deeper = dict.fromkeys(name for name in first if name.startswith((f"{HEAD}layers.1.", f"{HEAD}layers.2.")))
    place = folder("one-layer", tensors=deeper, num_mrp_heads=None, num_nextn_predict_layers=None)
    model = MRPForDiffusionLM.from_pretrained(place)
    assert model.config.num_mrp_layers == 1
    assert_holds(model, place)


# What does not fit


@pytest.mark.parametrize(
    ("field", "value"), [("num_mrp_heads", -1), ("num_mrp_heads", "1"), ("num_nextn_predict_layers", 0)]
)
def test_numbers_that_cannot_be(folder, field, value):
    with pytest.raises(ValueError, match=f"{field}={value!r}"):
        MRPForDiffusionLM.from_pretrained(folder(**{field: value}))


def test_mask_id_and_block_length_may_be_open(folder):
    place = folder(mask_token_id=None)
    with pytest.raises(ValueError, match=r"gives no mask_token_id: pass `mask_token_id=\.\.\.`"):
        MRPForDiffusionLM.from_pretrained(place)
    assert MRPForDiffusionLM.from_pretrained(place, mask_token_id=147).config.mask_token_id == 147
    added = [{"id": 146, "content": "<|MASK|>"}]
    (place / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert MRPForDiffusionLM.from_pretrained(place).config.mask_token_id == 146
    place = folder("no-block", block_size=None)
    with pytest.raises(ValueError, match=r"gives no block_length: pass `block_length=\.\.\.`"):
        MRPForDiffusionLM.from_pretrained(place)
    assert MRPForDiffusionLM.from_pretrained(place, block_length=4).config.block_length == 4
    with pytest.raises(ValueError, match=r"`mask_token_id` must be inside .* got 150"):
        MRPForDiffusionLM.from_pretrained(folder("outside", mask_token_id=150))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{HEAD}hnorm.weight": None}, r"mrp_head\.hnorm\.weight is missing"),
        ({"model.norm.weight": None}, r"backbone\.model\.norm\.weight is missing"),
        ({f"{HEAD}eh_proj.weight": torch.ones(64, 64)}, r"mrp_head\.eh_proj\.weight has shape \(64, 64\) instead"),
        (
            {f"{HEAD}layers.3.mlp.up_proj.weight": torch.ones(1)},
            r"layers\.3\.mlp\.up_proj\.weight is not in a head of 3",
        ),
    ],
)
def test_tensors_that_do_not_fit(folder, tensors, message):
    with pytest.raises(ValueError, match=message):
        MRPForDiffusionLM.from_pretrained(folder(tensors=tensors))


def test_a_config_without_a_model_type(folder):
    with pytest.raises(ValueError, match="has no `model_type`"):
        MRPForDiffusionLM.from_pretrained(folder(model_type=None))


def test_pickles_are_not_read(folder):
    place = folder()
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds pytorch_model\.bin, but no model\.safetensors"):
        MRPForDiffusionLM.from_pretrained(place)


def test_what_the_layout_is_told_by():
    assert is_published({"model_type": "sdar", "architectures": ["SDARMRPForCausalLM"]})
    assert is_published({"model_type": "sdar", "num_nextn_predict_layers": 1})
    assert not is_published({"model_type": "sdar", "architectures": ["SDARForCausalLM"]})
    assert not is_published({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})
