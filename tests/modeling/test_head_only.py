"""Checkpoints that hold the head alone."""

import json
import logging
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from mrp_hf import MRPForDiffusionLM
from mrp_hf.modeling.head_only_mrp import backbone_fingerprint

IDS = torch.tensor([[5, 9, 14, 63, 3, 63, 20, 63, 8, 63]])


@pytest.fixture
def make(tiny_model, tmp_path):
    """A function that builds a model whose backbone stands in a folder of its own, `tmp_path / "backbone"`."""

    def build(**settings):
        model = tiny_model(**settings)
        model.backbone.save_pretrained(tmp_path / "backbone")
        model.backbone.config.architectures = None  # as in a backbone that was loaded from there
        model.config.backbone_name_or_path = str(tmp_path / "backbone")
        return model

    return build


@pytest.fixture
def saved(make, tmp_path):
    """A model, and the folder of its head-only checkpoint."""
    model = make(num_mrp_layers=2)
    model.save_pretrained(tmp_path / "head", head_only=True)
    return model, tmp_path / "head"


def assert_same(first, second):
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor, other[name]), name
    assert torch.equal(
        first(IDS, revealed_ids=IDS.flip(1)).residual_logits, second(IDS, revealed_ids=IDS.flip(1)).residual_logits
    )


def change(folder, **fields):
    """Change fields of a folder's config; `None` removes one."""
    config = json.loads((folder / "config.json").read_text()) | fields
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


# Round trips


@pytest.mark.parametrize(
    "settings",
    [
        {"tie_word_embeddings": True},
        {"seed": 1, "num_mrp_layers": 3},
        {"seed": 2, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 1},
        {"seed": 3, "tie_word_embeddings": True, "mrp_prediction": "direct", "attn_implementation": "eager"},
    ],
)
def test_saved_and_loaded_is_bit_equal(make, tmp_path, settings):
    model = make(**settings)
    model.save_pretrained(tmp_path / "head", head_only=True)
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    assert tensors.keys() == {f"mrp_head.{name}" for name in model.mrp_head.state_dict()}
    for auto in (MRPForDiffusionLM, AutoModel, AutoModelForCausalLM):
        again = auto.from_pretrained(tmp_path / "head", attn_implementation=settings.get("attn_implementation", "sdpa"))
        assert type(again) is MRPForDiffusionLM
        assert_same(model, again)
        assert again.config.to_diff_dict() == model.config.to_diff_dict()
        assert not any(parameter.requires_grad for parameter in again.backbone.parameters())
        assert all(parameter.requires_grad for parameter in again.mrp_head.parameters())
        assert not again.training
        assert again._no_split_modules == {"Qwen3DecoderLayer"}


def test_the_config_says_head_only_until_a_full_save(saved, tmp_path):
    model, folder = saved
    config = AutoConfig.from_pretrained(folder)
    assert config.mrp_head_only
    assert config.backbone_fingerprint == backbone_fingerprint(model.backbone)
    assert config.backbone_config.hidden_size == 32
    assert not model.config.mrp_head_only
    again = MRPForDiffusionLM.from_pretrained(folder)
    again.save_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    assert (config.mrp_head_only, config.backbone_fingerprint) == (False, None)
    assert "backbone.model.norm.weight" in load_file(folder / "model.safetensors")
    assert_same(model, MRPForDiffusionLM.from_pretrained(folder))


def test_shards(saved):
    model, folder = saved
    model.save_pretrained(folder, head_only=True, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert not (folder / "model.safetensors").exists()
    assert_same(model, MRPForDiffusionLM.from_pretrained(folder))


def test_generation_config_and_overrides(saved):
    model, folder = saved
    model.generation_config.mrp_mode = "direct"
    model.save_pretrained(folder, head_only=True)
    again = MRPForDiffusionLM.from_pretrained(folder, block_length=5)
    assert again.generation_config.to_diff_dict() == model.generation_config.to_diff_dict()
    assert again.config.block_length == 5
    with pytest.raises(ValueError, match="`block_length` must be at least 1, got 0"):
        MRPForDiffusionLM.from_pretrained(folder, block_length=0)


def test_dtype_device_and_attention_are_those_of_both_parts(saved):
    _, folder = saved
    model = MRPForDiffusionLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map="cpu", attn_implementation="eager"
    )
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    parts = (model, model.backbone, model.mrp_head)
    assert {part.config._attn_implementation for part in parts} == {"eager"}
    assert model.config.dtype == model.config.backbone_config.dtype == torch.bfloat16
    assert model(IDS, revealed_ids=IDS).residual_logits.isfinite().all()


def test_by_default_the_dtype_is_that_of_the_save(make, tmp_path):
    model = make().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "head", head_only=True)  # the backbone's folder holds float32
    for auto in (MRPForDiffusionLM, AutoModel):
        again = auto.from_pretrained(tmp_path / "head").state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())
    wide = AutoModel.from_pretrained(tmp_path / "head", dtype=torch.float32)
    assert {parameter.dtype for parameter in wide.parameters()} == {torch.float32}


def test_only_the_main_process_writes(make, tmp_path):
    make().save_pretrained(tmp_path / "head", is_main_process=False, head_only=True)
    assert not list((tmp_path / "head").iterdir())


# Where the backbone comes from


def test_the_backbone_may_have_moved(saved, tmp_path):
    model, folder = saved
    moved = tmp_path / "elsewhere"
    (tmp_path / "backbone").rename(moved)
    with pytest.raises(ValueError, match=r"head' cannot be used with backbone '.*backbone': pass another folder"):
        MRPForDiffusionLM.from_pretrained(folder)
    for backbone in (moved, str(moved), model.backbone):
        again = MRPForDiffusionLM.from_pretrained(folder, backbone=backbone)
        assert_same(model, again)
    assert again.backbone is model.backbone
    assert MRPForDiffusionLM.from_pretrained(folder, backbone=moved).config.backbone_name_or_path == str(moved)
    assert_same(model, AutoModel.from_pretrained(folder, backbone=str(moved)))


def test_a_relative_path_is_found_from_everywhere(make, tmp_path, monkeypatch):
    model = make()
    monkeypatch.chdir(tmp_path)
    model.config.backbone_name_or_path = "backbone"
    model.save_pretrained("head", head_only=True)
    assert model.config.backbone_name_or_path == "backbone"
    monkeypatch.chdir("/")
    assert_same(model, MRPForDiffusionLM.from_pretrained(tmp_path / "head"))


def test_a_folder_that_names_no_backbone(saved):
    model, folder = saved
    change(folder, backbone_name_or_path="")
    with pytest.raises(ValueError, match=r"does not name its backbone.*`backbone=\.\.\.`"):
        MRPForDiffusionLM.from_pretrained(folder)
    assert_same(model, MRPForDiffusionLM.from_pretrained(folder, backbone=model.backbone))


def test_a_full_checkpoint_takes_no_other_backbone(saved, tmp_path):
    model, _ = saved
    model.save_pretrained(tmp_path / "full")
    with pytest.raises(ValueError, match="`backbone` is for head-only checkpoints"):
        MRPForDiffusionLM.from_pretrained(tmp_path / "full", backbone=model.backbone)


# Fingerprints


def test_one_fingerprint_in_float32_and_bfloat16(tiny_model, tmp_path):
    backbone = tiny_model().backbone
    fingerprint = backbone_fingerprint(backbone)
    assert fingerprint.startswith("sha256:")
    assert backbone_fingerprint(tiny_model().backbone) == fingerprint
    backbone.to(torch.bfloat16)
    assert backbone_fingerprint(backbone) == fingerprint
    backbone.to(torch.float32)
    assert backbone_fingerprint(backbone) == fingerprint


@pytest.mark.parametrize("name", ["model.norm.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_every_tensor_counts(tiny_model, name):
    model = tiny_model()
    before = backbone_fingerprint(model.backbone)
    with torch.no_grad():
        model.backbone.get_parameter(name).mul_(1.1)
    assert backbone_fingerprint(model.backbone) != before


def test_weights_that_are_not_as_saved_have_none(tiny_model, saved, caplog):
    model, folder = saved
    assert backbone_fingerprint(tiny_model().backbone.half()) is None
    assert backbone_fingerprint(tiny_model().backbone.to("meta")) is None
    model.backbone.hf_quantizer = object()
    assert backbone_fingerprint(model.backbone) is None
    with caplog.at_level(logging.WARNING):
        again = MRPForDiffusionLM.from_pretrained(folder, backbone=model.backbone)
    assert "cannot be checked: one of the two was quantised" in caplog.text
    assert_same(model, again)
    caplog.clear()
    again.save_pretrained(folder, head_only=True)
    assert AutoConfig.from_pretrained(folder).backbone_fingerprint is None
    MRPForDiffusionLM.from_pretrained(folder)
    assert "cannot be checked" in caplog.text


def test_a_backbone_of_other_weights_is_refused(saved, tiny_model, tmp_path):
    _, folder = saved
    other = tiny_model(seed=5).backbone
    with pytest.raises(ValueError, match="was trained on other weights"):
        MRPForDiffusionLM.from_pretrained(folder, backbone=other)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"other weights than those of backbone '.*other'.*`backbone=\.\.\.`"):
        MRPForDiffusionLM.from_pretrained(folder, backbone=tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"hidden_size": 16}, "hidden_size"),
        ({"num_hidden_layers": 3}, "num_hidden_layers"),
        ({"vocab_size": 80}, "vocab"),
    ],
)
def test_a_backbone_of_another_shape_is_refused_before_it_is_loaded(saved, tiny_model, tmp_path, settings, field):
    _, folder = saved
    other = tiny_model(**settings).backbone
    with pytest.raises(ValueError, match=f"was trained on a backbone with {field}"):
        MRPForDiffusionLM.from_pretrained(folder, backbone=other)
    other.config.save_pretrained(tmp_path / "other")  # without weights
    with pytest.raises(ValueError, match=f"was trained on a backbone with {field}"):
        MRPForDiffusionLM.from_pretrained(folder, backbone=tmp_path / "other")


# What does not fit


def test_tensors_that_are_missing_too_many_or_of_another_shape(saved):
    _, folder = saved
    file = folder / "model.safetensors"
    tensors = load_file(file)
    kept = {name: tensor for name, tensor in tensors.items() if name != "mrp_head.enorm.weight"}
    save_file(kept, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"mrp_head\.enorm\.weight is missing"):
        MRPForDiffusionLM.from_pretrained(folder)
    save_file(tensors | {"mrp_head.eh_proj.weight": torch.ones(32, 32)}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"mrp_head\.eh_proj\.weight has shape \(32, 32\) instead of \(32, 64\)"):
        MRPForDiffusionLM.from_pretrained(folder)
    save_file(tensors, file, {"format": "pt"})
    change(folder, num_mrp_layers=1)
    with pytest.raises(ValueError, match=r"mrp_head\.layers\.1\..* is not in a head of 1 layers"):
        MRPForDiffusionLM.from_pretrained(folder)
    change(folder, num_mrp_layers=3)
    with pytest.raises(ValueError, match=r"mrp_head\.layers\.2\..* and 10 more tensors are missing"):
        MRPForDiffusionLM.from_pretrained(folder)


def test_a_config_without_its_fields(saved):
    _, folder = saved
    text = (folder / "config.json").read_text()
    change(folder, model_type=None)
    with pytest.raises(ValueError, match='has no `model_type`: write "mrp" into it'):
        MRPForDiffusionLM.from_pretrained(folder)
    (folder / "config.json").write_text(text)
    change(folder, mask_token_id=None)
    with pytest.raises(ValueError, match="`mask_token_id` must be inside"):
        MRPForDiffusionLM.from_pretrained(folder)
    assert MRPForDiffusionLM.from_pretrained(folder, mask_token_id=63).config.mask_token_id == 63


def test_pickled_heads_are_not_read(saved):
    _, folder = saved
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds pytorch_model\.bin, but no model\.safetensors"):
        MRPForDiffusionLM.from_pretrained(folder)


def test_options_that_are_for_the_backbone_or_for_nothing(saved):
    model, folder = saved
    with pytest.raises(TypeError, match=r"does not load with \['quantization_config'\]: load the backbone so"):
        MRPForDiffusionLM.from_pretrained(folder, quantization_config={})
    with pytest.raises(ValueError, match="set them on the model that you pass"):
        MRPForDiffusionLM.from_pretrained(folder, backbone=model.backbone, dtype=torch.float32)


@pytest.mark.parametrize(
    ("settings", "name", "message"),
    [({"num_mrp_layers": 0}, "somewhere", "has no head"), ({}, "", "`model.config.backbone_name_or_path` is not set")],
)
def test_what_cannot_be_saved_leaves_no_folder(tiny_model, tmp_path, settings, name, message):
    model = tiny_model(**settings)
    model.config.backbone_name_or_path = name
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path / "head", head_only=True)
    assert not (tmp_path / "head").exists()
    assert not model.config.mrp_head_only


def test_a_save_that_dies_leaves_the_last_one_whole(saved, make, monkeypatch):
    _, folder = saved
    files = {file.name: file.read_bytes() for file in folder.iterdir()}

    def die(stage):
        raise KeyboardInterrupt

    monkeypatch.setattr("mrp_hf.modeling.modeling_mrp.write_code", die)
    other = make(seed=1)
    with pytest.raises(KeyboardInterrupt):
        other.save_pretrained(folder, head_only=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files
    assert not other.config.mrp_head_only


# Code that travels

WITHOUT_THE_PACKAGE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mrp_hf", "modeling", "generation"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import torch
from transformers import AutoModel, AutoModelForCausalLM
first, second, moved, out = sys.argv[1:]
ids = torch.tensor([[5, 9, 14, 63, 3, 63, 20, 63, 8, 63]])
model = AutoModel.from_pretrained(first, trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules"), type(model)
assert type(model.mrp_head).__module__.startswith("transformers_modules"), type(model.mrp_head)
model.save_pretrained(second, head_only=True)
again = AutoModelForCausalLM.from_pretrained(second, trust_remote_code=True, backbone=moved, dtype="auto")
assert again.config.backbone_name_or_path == moved
with torch.no_grad():
    outputs = [part(ids, revealed_ids=ids.flip(1)) for part in (model, again)]
assert torch.equal(outputs[0].residual_logits, outputs[1].residual_logits)
torch.save({"residual_logits": outputs[0].residual_logits, "state": again.state_dict(),
            "new": again.generate(ids[:, :6], mrp_mode="direct", max_new_tokens=11)}, out)
"""


def test_remote_code_works_where_the_package_cannot_be_imported(saved, tmp_path):
    model, folder = saved
    (tmp_path / "backbone").joinpath("copy").mkdir()
    for file in (tmp_path / "backbone").glob("*.*"):
        (tmp_path / "backbone" / "copy" / file.name).write_bytes(file.read_bytes())
    arguments = [folder, tmp_path / "second", tmp_path / "backbone" / "copy", tmp_path / "out.pt"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # sums in another order are other floats
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    found = torch.load(tmp_path / "out.pt")
    assert all(torch.equal(found["state"][name], tensor) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        expected = model(IDS, revealed_ids=IDS.flip(1)).residual_logits
    torch.testing.assert_close(found["residual_logits"], expected, atol=1e-6, rtol=0)
    assert torch.equal(found["new"], model.generate(IDS[:, :6], mrp_mode="direct", max_new_tokens=11))
    contents = [{file.name: file.read_bytes() for file in place.iterdir()} for place in (folder, tmp_path / "second")]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("place", [0, 1, 17, -2])
def test_every_element_of_a_backbone_counts(tiny_model, place):
    backbone = tiny_model().backbone
    before = backbone_fingerprint(backbone)
    backbone.lm_head.weight.data.view(-1)[place] += 0.5
    assert backbone_fingerprint(backbone) != before


def test_numbers_that_a_config_computes_with_count(saved, tmp_path):
    model, folder = saved
    model.backbone.config.rms_norm_eps *= 2
    try:
        with pytest.raises(ValueError, match="was trained on a backbone with rms_norm_eps"):
            MRPForDiffusionLM.from_pretrained(folder, backbone=model.backbone)
    finally:
        model.backbone.config.rms_norm_eps /= 2


def test_the_backbone_is_not_overwritten_by_its_head(tiny_model, tmp_path):
    tiny_model().backbone.save_pretrained(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    model = MRPForDiffusionLM.from_backbone(tmp_path, mask_token_id=63, block_length=4)
    with pytest.raises(ValueError, match="is the folder of the backbone itself"):
        model.save_pretrained(tmp_path, head_only=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
