"""Checkpoints of every format from every other."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BertConfig

from mrp_hf import MRPForDiffusionLM
from mrp_hf.checkpoints import convert, export_published
from mrp_hf.checkpoints.published import published_config
from mrp_hf.cli import main
from mrp_hf.demo.tokenizer import build_tokenizer

FORMATS = ("full", "head", "published")
SETTINGS = {
    "plain": {},
    "tied": {"seed": 1, "tie_word_embeddings": True, "num_mrp_layers": 2},
    "wide": {"seed": 2, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 3},
    "direct": {"seed": 3, "mrp_prediction": "direct", "num_mrp_layers": 3},
}
PUBLISHED_FIELDS = (
    "block_size",
    "fuse_cross_entropy",
    "mask_token_id",
    "mrp_prediction",
    "num_mrp_heads",
    "num_nextn_predict_layers",
)


@pytest.fixture
def save(tiny_model, tmp_path):
    """A function that saves a tiny model in a format, to `tmp_path / format`, and gives the model and the folder."""

    def build(to="full", **settings):
        backbone = tiny_model(**settings).backbone
        backbone.save_pretrained(tmp_path / "backbone")
        settings = {name: settings[name] for name in ("num_mrp_layers", "mrp_prediction") if name in settings}
        torch.manual_seed(7)
        model = MRPForDiffusionLM.from_backbone(
            tmp_path / "backbone", **{"num_mrp_layers": 1, "mask_token_id": 63, "block_length": 4} | settings
        )
        model.config.mrp_head_trained = True
        folder = tmp_path / to
        if to == "published":
            export_published(model, folder)
        else:
            model.save_pretrained(folder, head_only=to == "head")
        return model, folder

    return build


def read(folder):
    """All tensors in a folder, by name."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name


def config_of(folder):
    """A folder's config, without the name of the backbone (of a published checkpoint that is the checkpoint's own) and
    what a native config has kept of the published one."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("backbone_name_or_path", None)
    for name in PUBLISHED_FIELDS:
        config.get("backbone_config", {}).pop(name, None)
    return config


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("there", FORMATS)
@pytest.mark.parametrize("here", FORMATS)
def test_there_and_back_is_bit_exact(save, tmp_path, here, there, settings):
    model, start = save(here, **settings)
    out, back = tmp_path / "out", tmp_path / "back"
    written = convert(start, out, there)
    assert_equal(model.state_dict(), written.state_dict())
    backbone = str(tmp_path / "backbone") if "head" in (here, there) else None
    convert(out, back, here, backbone=backbone)
    assert_equal(read(start), read(back))
    assert config_of(start) == config_of(back)
    loaded = MRPForDiffusionLM.from_pretrained(back)
    assert_equal(model.state_dict(), loaded.state_dict())
    assert loaded.generation_config.to_diff_dict() == model.generation_config.to_diff_dict()
    for name in ("block_length", "mask_token_id", "mrp_prediction", "mrp_head_trained", "num_mrp_layers"):
        assert getattr(loaded.config, name) == getattr(model.config, name), name


@pytest.mark.parametrize("by_way_of", FORMATS)
def test_the_published_fixture_comes_back_as_it_was(fixtures, tmp_path, by_way_of):
    source = fixtures / "sdar-mrp-official"
    convert(source, tmp_path / "there", by_way_of)
    convert(tmp_path / "there", tmp_path / "back", "published")
    assert_equal(load_file(source / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors"))
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "back"))
    del before["transformers_version"]
    assert after == before


def test_bfloat16_stays(save, tmp_path):
    model, _ = save()
    model = model.to(torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    for to in FORMATS:
        convert(tmp_path / "half", tmp_path / f"half-{to}", to)
        assert_equal(model.state_dict(), MRPForDiffusionLM.from_pretrained(tmp_path / f"half-{to}").state_dict())
        assert {tensor.dtype for tensor in read(tmp_path / f"half-{to}").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "half-published" / "config.json").read_text())["torch_dtype"] == "bfloat16"


# Export


def test_a_tied_head_is_not_written_twice(save):
    _, folder = save("published", tie_word_embeddings=True)
    names = read(folder).keys()
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]


def test_shards(save, tmp_path):
    model, _ = save()
    export_published(model, tmp_path / "shards", max_shard_size="20KB")
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert_equal(model.state_dict(), MRPForDiffusionLM.from_pretrained(tmp_path / "shards").state_dict())


def test_our_fields_are_written_only_where_they_say_something(save):
    model, _ = save()
    assert not {"mrp_prediction", "mrp_head_trained", "mrp_initializer_range"} & published_config(model).keys()
    model.config.mrp_prediction, model.config.mrp_head_trained = "direct", False
    fields = published_config(model)
    assert (fields["mrp_prediction"], fields["mrp_head_trained"]) == ("direct", False)
    assert (fields["num_mrp_heads"], fields["num_nextn_predict_layers"], fields["block_size"]) == (1, 1, 4)
    assert (fields["model_type"], fields["architectures"]) == ("sdar", ["SDARMRPForCausalLM"])


def test_scaled_rotary_positions(save, tmp_path):
    model, _ = save()
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256, "rope_theta": 5000.0}
    model.backbone.config.rope_parameters = dict(rope)
    export_published(model, tmp_path / "yarn")
    fields = json.loads((tmp_path / "yarn" / "config.json").read_text())
    assert fields["rope_theta"] == 5000.0
    assert fields["rope_scaling"] == {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}
    again = MRPForDiffusionLM.from_pretrained(tmp_path / "yarn").config.backbone_config.rope_parameters
    assert {name: again[name] for name in rope} == rope


def test_what_the_published_layout_cannot_hold(save, tmp_path):
    model, _ = save(num_mrp_layers=0)
    with pytest.raises(ValueError, match=r"without a head .* `model\.backbone\.save_pretrained"):
        export_published(model, tmp_path / "out")
    with pytest.raises(ValueError, match="without a head"):
        convert(tmp_path / "full", tmp_path / "out", "published")
    model.config.num_mrp_layers = 1
    model.config.backbone_config = BertConfig()
    with pytest.raises(ValueError, match="natively 'qwen3'; this one is 'bert'"):
        export_published(model, tmp_path / "out")
    model.config.backbone_config = model.backbone.config
    model.config.logit_shift = True
    with pytest.raises(ValueError, match="is for logit_shift=False, this model has True"):
        export_published(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Tokenizers


@pytest.mark.parametrize("to", FORMATS)
def test_the_tokenizer_goes_along(save, tmp_path, to):
    _, folder = save()
    build_tokenizer().save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenization_own.py").write_text("class OwnTokenizer: ...\n")
    convert(folder, tmp_path / "out", to)
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tokenization_own.py")
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes(), name


# What is refused


def test_a_target_that_holds_something_is_left_alone(save, tmp_path):
    _, folder = save()
    target = tmp_path / "taken"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"`target` is '.*taken', which is not an empty folder"):
        convert(folder, target, "head")
    with pytest.raises(ValueError, match="not an empty folder"):
        convert(folder, target / "notes.txt", "head")
    with pytest.raises(ValueError, match="not an empty folder"):
        convert(folder, folder, "head")
    assert [file.name for file in target.iterdir()] == ["notes.txt"]
    (target / "notes.txt").unlink()
    convert(folder, target, "head")
    assert "config.json" in {file.name for file in target.iterdir()}


def test_arguments_that_cannot_work(save, tmp_path):
    _, folder = save()
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="`to` must be one of"):
        convert(folder, out, "gguf")
    with pytest.raises(ValueError, match="`backbone` is 'x', but neither"):
        convert(folder, out, "published", backbone="x")
    with pytest.raises(ValueError, match="`mrp_prediction` is 'direct', but `source` is not of the published layout"):
        convert(folder, out, "published", mrp_prediction="direct")
    with pytest.raises(ValueError, match=r"nothing.*there is no such folder"):
        convert(tmp_path / "nothing", out, "full")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"backbone_name_or_path": None}))
    with pytest.raises(ValueError, match="does not say where its backbone came from"):
        convert(folder, out, "head")
    assert not out.exists()
    convert(folder, out, "head", backbone=str(tmp_path / "backbone"))
    MRPForDiffusionLM.from_pretrained(out)


@pytest.mark.parametrize("to", FORMATS)
def test_a_source_that_does_not_load_leaves_nothing(save, tmp_path, to):
    _, folder = save("head")
    shutil.rmtree(tmp_path / "backbone")
    with pytest.raises(ValueError, match="cannot be used with backbone"):
        convert(folder, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("to", FORMATS)
def test_a_conversion_that_dies_leaves_nothing(save, tmp_path, monkeypatch, to, existed):
    _, folder = save()
    out = tmp_path / "out"
    if existed:
        out.mkdir()

    def die(source, stage):
        assert (stage / "config.json").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("mrp_hf.checkpoints.conversion.copy_tokenizer", die)
    with pytest.raises(KeyboardInterrupt):
        convert(folder, out, to)
    assert out.exists() is existed
    assert not existed or not list(out.iterdir())


# The command


def test_the_command(save, tmp_path, capsys):
    model, folder = save()
    for to, said in (
        ("published", "published checkpoint, 0.1 MB"),
        ("head", f"backbone {tmp_path / 'backbone'}, 0.0 MB"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["convert", str(folder), str(tmp_path / to), "--to", to])
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"Wrote {tmp_path / to}: {to} checkpoint")
        assert said in shown
        assert shown.count("\n") == 1
        assert_equal(model.state_dict(), MRPForDiffusionLM.from_pretrained(tmp_path / to).state_dict())


def test_what_was_converted_generates_the_same(demo_folder, tmp_path, capsys):
    MRPForDiffusionLM.from_pretrained(demo_folder).backbone.save_pretrained(tmp_path / "backbone")
    shown = {}
    for to in ("source", *FORMATS):
        folder = demo_folder if to == "source" else tmp_path / to
        if to != "source":
            convert(demo_folder, folder, to, backbone=str(tmp_path / "backbone") if to == "head" else None)
        with pytest.raises(SystemExit) as stopped:
            main(["generate", str(folder), "tom has 34 pens.", "--mode", "direct", "--max-new-tokens", "32", "--raw"])
        assert stopped.value.code == 0
        shown[to] = capsys.readouterr().out
    assert len(shown["source"]) > 8
    assert set(shown.values()) == {shown["source"]}


def test_the_command_says_what_a_published_head_predicts(fixtures, tmp_path):
    arguments = ["convert", str(fixtures / "sdar-mrp-official"), str(tmp_path / "out"), "--to", "full"]
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--prediction", "direct"])
    assert stopped.value.code == 0
    assert MRPForDiffusionLM.from_pretrained(tmp_path / "out").config.mrp_prediction == "direct"


def test_an_error_of_the_command_is_one_line(save, capsys):
    _, folder = save()
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(folder), str(folder), "--to", "head"])
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("mrp-hf: `target` is")


def test_a_published_folder_serves_as_a_plain_backbone_too(save):
    """Which is why a head-only checkpoint may name one."""
    model, folder = save("published")
    backbone = MRPForDiffusionLM.from_backbone(folder, num_mrp_layers=0).backbone
    assert_equal(model.backbone.state_dict(), backbone.state_dict())
    assert type(backbone) is type(AutoModelForCausalLM.from_config(model.config.backbone_config))


def test_a_backbone_that_is_not_there(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path / "full")
    with pytest.raises(ValueError, match="there is no such folder"):
        convert(tmp_path / "full", tmp_path / "head", "head", backbone=str(tmp_path / "nowhere"))
    assert not (tmp_path / "head").exists()


def test_what_a_conversion_that_died_left_is_no_obstacle(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path / "full")
    (tmp_path / "out" / ".saving-abc").mkdir(parents=True)
    convert(tmp_path / "full", tmp_path / "out", "full")
    assert not list((tmp_path / "out").glob(".saving-*"))


def test_scaled_logits_have_no_place_in_the_published_layout(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"for logit_scale=1\.0, this model has 0\.5"):
        export_published(tiny_model(logit_scale=0.5), tmp_path)
