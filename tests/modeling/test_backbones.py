"""How a name becomes a native config, a mask id and a block length; nothing here loads a weight unless it says so."""

import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, PreTrainedConfig, Qwen3Config

from mrp_hf import MRPForDiffusionLM
from mrp_hf.modeling.architectures_mrp import ARCHITECTURES
from mrp_hf.modeling.backbones_mrp import resolve_backbone, tokenizer_mask_id
from mrp_hf.modeling.families_mrp import FAMILIES

from ..families import EOS, PAD, write_checkpoint


@pytest.fixture
def backbone_folder(fixtures, tmp_path):
    """A function that copies the `sdar` fixture with some config fields changed; `None` deletes a field."""

    def make(name="backbone", **changes):
        folder = tmp_path / name
        shutil.copytree(fixtures / "sdar", folder)
        fields = json.loads((folder / "config.json").read_text()) | changes
        fields = {key: value for key, value in fields.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(fields))
        return folder

    return make


@pytest.mark.parametrize(("name", "block_length", "mask"), [("sdar", 4, 158), ("sdar-block16", 16, 148)])
def test_sdar_is_a_native_qwen3(fixtures, name, block_length, mask):
    resolved = resolve_backbone(fixtures / name)
    assert type(resolved.config) is Qwen3Config
    assert (resolved.block_length, resolved.mask_token_id) == (block_length, mask)
    assert (resolved.attention_pattern, resolved.logit_shift) == ("block_causal", False)
    assert resolved.config.rope_parameters == {"rope_type": "default", "rope_theta": 1000000}
    assert not hasattr(resolved.config, "auto_map")
    assert resolved.config.architectures is None
    assert resolved.config._attn_implementation is None


def test_arguments_come_before_the_config(fixtures):
    resolved = resolve_backbone(fixtures / "sdar", mask_token_id=3, block_length=7)
    assert (resolved.mask_token_id, resolved.block_length) == (3, 7)


def test_every_row_names_a_native_architecture_whose_class_we_can_call():
    native = {family.native_type for family in FAMILIES.values()}
    assert native <= set(ARCHITECTURES)
    assert {name for name in native if name not in CONFIG_MAPPING} <= {"llada2_moe"}


@pytest.mark.parametrize(("name", "expected"), [("SDAR-1.7B-Chat", 4), ("SDAR-1.7B-Chat-b16", 16), ("SDAR-b32", 32)])
def test_published_sdar_configs_say_neither_mask_nor_block(backbone_folder, caplog, name, expected):
    folder = backbone_folder(name, mask_token_id=None, block_size=None)
    tokenizer = {"added_tokens_decoder": {"157": {"content": "<|MASK|>"}, "3": {"content": "<|other|>"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    with caplog.at_level(logging.WARNING):
        resolved = resolve_backbone(folder)
    assert (resolved.mask_token_id, resolved.block_length) == (157, expected)
    assert f"{expected} is assumed; pass `block_length=...`" in caplog.text


@pytest.mark.parametrize("declared", ["<mask>", {"content": "<mask>", "lstrip": False}])
def test_mask_token_that_the_tokenizer_declares(tmp_path, declared):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": declared}))
    added = [{"id": 5, "content": "<|MASK|>"}, {"id": 6, "content": "<mask>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert tokenizer_mask_id(str(tmp_path), ("<|MASK|>",)) == 6


def test_mask_token_without_a_tokenizer(tmp_path):
    assert tokenizer_mask_id(str(tmp_path), ("<|MASK|>",)) is None


def test_what_stays_open_is_an_error_that_says_how_to_pass_it(backbone_folder):
    folder = backbone_folder(mask_token_id=None)
    with pytest.raises(ValueError, match="pass `mask_token_id="):
        MRPForDiffusionLM.from_backbone(folder)
    folder = backbone_folder("qwen", model_type="qwen3", block_size=None)
    with pytest.raises(ValueError, match="pass `block_length="):
        MRPForDiffusionLM.from_backbone(folder)


def test_wrong_mask_id_or_block_length(fixtures):
    with pytest.raises(ValueError, match=r"`mask_token_id` must be inside .* \(0 to 159\), got 160"):
        MRPForDiffusionLM.from_backbone(fixtures / "sdar", mask_token_id=160)
    with pytest.raises(ValueError, match="`block_length` must be at least 1, got 0"):
        MRPForDiffusionLM.from_backbone(fixtures / "sdar", block_length=0)


@pytest.mark.parametrize("path", ["/no/such/folder", "./neither", "one-word"])
def test_a_path_that_is_none(path):
    with pytest.raises(ValueError, match=f"`name_or_path` is '{path}', but there is no such folder"):
        MRPForDiffusionLM.from_backbone(path)


def test_a_folder_that_holds_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"neither a folder with a config\.json nor a model"):
        MRPForDiffusionLM.from_backbone(tmp_path)


def test_a_hub_name_that_cannot_be_reached(monkeypatch):
    def fail(name, **kwargs):
        raise OSError("offline")

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", fail)
    with pytest.raises(ValueError, match="`name_or_path` is 'owner/model', which is neither"):
        MRPForDiffusionLM.from_backbone("owner/model")


def test_a_config_without_or_with_an_unknown_model_type(backbone_folder, fixtures):
    with pytest.raises(ValueError, match="has no `model_type`"):
        MRPForDiffusionLM.from_backbone(backbone_folder(model_type=None))
    with pytest.raises(ValueError, match=r"model_type='gpt2', which is in no row .*trust_remote_code=True"):
        MRPForDiffusionLM.from_backbone(backbone_folder("gpt", model_type="gpt2"))


def test_a_family_that_this_transformers_lacks(backbone_folder):
    with pytest.raises(ValueError, match="is a llada2_moe, which this version of transformers does not implement"):
        MRPForDiffusionLM.from_backbone(backbone_folder(model_type="llada2_moe"))


def test_a_variant_that_is_not_the_native_architecture(backbone_folder):
    folder = backbone_folder(model_type="llada", alibi=True)
    with pytest.raises(ValueError, match="has alibi=True in its config, but the native llama has False"):
        MRPForDiffusionLM.from_backbone(folder)


def test_attention_that_neither_family_nor_name_says(backbone_folder):
    for name, model_type in (("Qwen3-0.6B-diffusion", "a2d-qwen3"), ("mine", "llama")):
        folder = backbone_folder(name, model_type=model_type)
        with pytest.raises(ValueError, match=r"pass `attention_pattern` as it was trained"):
            resolve_backbone(folder)
        said = {"attention_pattern": "bidirectional", "logit_shift": False, "logit_scale": 1.0}
        assert resolve_backbone(folder, **said).attention_pattern == "bidirectional"


@pytest.mark.parametrize("left_out", ["attention_pattern", "logit_shift", "logit_scale"])
def test_a_native_llama_says_nothing_of_itself(backbone_folder, left_out):
    said = {"attention_pattern": "bidirectional", "logit_shift": True, "logit_scale": 0.5}
    folder = backbone_folder("mine", model_type="llama")
    resolved = resolve_backbone(folder, **said)
    assert {name: getattr(resolved, name) for name in said} == said
    del said[left_out]
    with pytest.raises(ValueError, match=f"pass `{left_out}`"):
        resolve_backbone(folder, **said)


def test_what_a_family_decodes_with(tmp_path):
    strategies = {"Dream": (None, None), "Fast_dLLM_Qwen": ("low_confidence_dynamic", 0.9)}
    for family, expected in strategies.items():
        model = MRPForDiffusionLM.from_backbone(write_checkpoint(family, 0, tmp_path), num_mrp_layers=0)
        config = model.generation_config
        assert (config.remasking_strategy, config.confidence_threshold) == expected
        assert (config.eos_token_id, config.pad_token_id) == (EOS, PAD)


def test_wrong_arguments_are_said_before_weights_are_read(backbone_folder):
    folder = backbone_folder()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"`attn_implementation` must be one of .*'flash_attention_2'"):
        MRPForDiffusionLM.from_backbone(folder, attn_implementation="flash_attention_2")
    with pytest.raises(ValueError, match=r"`num_mrp_layers` must be 0 .* got -1"):
        MRPForDiffusionLM.from_backbone(folder, num_mrp_layers=-1)
    with pytest.raises(TypeError, match=r"does not take .'block_size'"):
        MRPForDiffusionLM.from_backbone(folder, block_size=4)
    with pytest.raises(TypeError, match="must be a name, a path or a model"):
        MRPForDiffusionLM.from_backbone(3)


def test_weights_must_be_safetensors(backbone_folder):
    folder = backbone_folder()
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="there must be safetensors files"):
        MRPForDiffusionLM.from_backbone(folder)


def test_weights_must_fit_the_config(backbone_folder):
    folder = backbone_folder()
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.norm.weight": torch.ones(3)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(3,\) instead of \(64,\)"):
        MRPForDiffusionLM.from_backbone(folder)
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.norm\.weight is missing"):
        MRPForDiffusionLM.from_backbone(folder)


def test_an_mrp_checkpoint_is_no_backbone(tiny_model, tmp_path):
    model = tiny_model()
    with pytest.raises(ValueError, match="MRP checkpoint already"):
        MRPForDiffusionLM.from_backbone(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="MRP checkpoint already"):
        MRPForDiffusionLM.from_backbone(tmp_path)
