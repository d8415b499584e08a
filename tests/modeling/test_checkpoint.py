import json
import logging
import os
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

import mrp_hf
from mrp_hf import MRPForDiffusionLM, MRPGenerationConfig
from mrp_hf.modeling import checkpoint_mrp
from mrp_hf.modeling.checkpoint_mrp import code_files, flatten_imports, refresh_code, staged
from mrp_hf.modeling.configuration_mrp import CODE_VERSION

IDS = torch.tensor([[5, 9, 14, 63, 3, 63, 20, 63, 8, 63]])
OUTPUTS = ("logits", "last_hidden_state", "residual_logits", "mrp_hidden_state")


@torch.no_grad()
def assert_same(first, second):
    for name in OUTPUTS:
        one, other = (getattr(model(IDS, revealed_ids=IDS.flip(1)), name) for model in (first, second))
        assert torch.equal(one, other), name


# Round trips


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_saved_and_loaded_is_bit_equal(tiny_model, tmp_path, tied, attention):
    model = tiny_model(num_mrp_layers=2, tie_word_embeddings=tied, attn_implementation=attention)
    model.save_pretrained(tmp_path)
    assert ("backbone.lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
    for auto in (MRPForDiffusionLM, AutoModel, AutoModelForCausalLM):
        again = auto.from_pretrained(tmp_path, attn_implementation=attention)
        assert type(again) is MRPForDiffusionLM
        assert_same(model, again)
        assert again.config.to_diff_dict() == model.config.to_diff_dict()
        assert not any(parameter.requires_grad for parameter in again.backbone.parameters())
        assert all(parameter.requires_grad for parameter in again.mrp_head.parameters())
        assert not again.training


def test_a_model_without_a_head_round_trips(tiny_model, tmp_path):
    model = tiny_model(num_mrp_layers=0)
    model.save_pretrained(tmp_path)
    again = MRPForDiffusionLM.from_pretrained(tmp_path)
    assert again.mrp_head is None
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_shards_and_what_a_later_save_leaves_of_them(tiny_model, tmp_path):
    first, second = tiny_model(seed=0), tiny_model(seed=1)
    first.save_pretrained(tmp_path)
    second.save_pretrained(tmp_path, max_shard_size="50KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert_same(second, MRPForDiffusionLM.from_pretrained(tmp_path))
    first.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    assert_same(first, MRPForDiffusionLM.from_pretrained(tmp_path))


def test_generation_config_is_ours_everywhere(tiny_model, tmp_path):
    model = tiny_model()
    assert type(model.generation_config) is MRPGenerationConfig
    model.generation_config.mrp_mode = "direct"
    model.save_pretrained(tmp_path)
    again = MRPForDiffusionLM.from_pretrained(tmp_path)
    assert type(again.generation_config) is MRPGenerationConfig
    assert (again.generation_config.mrp_mode, again.generation_config.eos_token_id) == ("direct", 61)
    given = MRPForDiffusionLM.from_pretrained(tmp_path, generation_config=MRPGenerationConfig(mrp_mode="remask"))
    assert given.generation_config.mrp_mode == "remask"
    (tmp_path / "generation_config.json").unlink()
    bare = MRPForDiffusionLM.from_pretrained(tmp_path)
    assert type(bare.generation_config) is MRPGenerationConfig
    assert bare.generation_config.mrp_mode is None


# What does not fit


def test_missing_head_tensors_are_an_error(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("mrp_head.")}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"mrp_head\.eh_proj\.weight and 14 more tensors are missing.*from_backbone"):
        MRPForDiffusionLM.from_pretrained(tmp_path)


def test_a_head_of_other_width_is_an_error(tiny_model, tmp_path):
    tiny_model(hidden_size=32).save_pretrained(tmp_path)
    other = {f"mrp_head.{name}": tensor for name, tensor in tiny_model(hidden_size=16).mrp_head.state_dict().items()}
    tensors = load_file(tmp_path / "model.safetensors") | other
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"mrp_head\.eh_proj\.weight has shape \(16, 32\) instead of \(32, 64\)"):
        MRPForDiffusionLM.from_pretrained(tmp_path)


def test_a_config_that_asks_for_more_layers_is_an_error(tiny_model, tmp_path):
    tiny_model(num_mrp_layers=1).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"mrp_head\.layers\.1\."):
        MRPForDiffusionLM.from_pretrained(tmp_path, num_mrp_layers=2)
    with pytest.raises(ValueError, match="`block_length` must be at least 1, got 0"):
        MRPForDiffusionLM.from_pretrained(tmp_path, block_length=0)


def test_a_plain_backbone_folder_points_to_from_backbone(fixtures):
    with pytest.raises(ValueError, match="from_backbone"):
        MRPForDiffusionLM.from_pretrained(fixtures / "sdar")


def test_pickled_weights_are_not_read(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds pytorch_model\.bin, but no model\.safetensors"):
        MRPForDiffusionLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="`use_safetensors` is False"):
        MRPForDiffusionLM.from_pretrained(tmp_path, use_safetensors=False)


# Writing


def test_a_save_that_dies_leaves_the_last_one_whole(tiny_model, tmp_path, monkeypatch):
    first = tiny_model(seed=0)
    first.save_pretrained(tmp_path)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def die(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(mrp_hf.modeling.modeling_mrp, "write_code", die)
    with pytest.raises(KeyboardInterrupt):
        tiny_model(seed=1).save_pretrained(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files


def test_staged_moves_the_config_last(tmp_path, monkeypatch):
    moved = []
    monkeypatch.setattr(checkpoint_mrp.os, "replace", lambda source, target: moved.append(target.name))
    with staged(tmp_path) as stage:
        for name in ("z.py", "config.json", "a.py"):
            (stage / name).touch()
    assert moved[-1] == "config.json"
    assert set(moved) == {"z.py", "config.json", "a.py"}
    assert not list(tmp_path.iterdir())


def test_only_the_main_process_writes(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path, is_main_process=False)
    assert not list(tmp_path.iterdir())


def test_saving_to_the_hub_names_the_method_for_it(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"model\.push_to_hub"):
        tiny_model().save_pretrained(tmp_path, push_to_hub=True)


# Code that travels


def test_flattened_imports_reach_every_file():
    """transformers copies only what `modeling_mrp` reaches by single-dot imports, so nothing may stand outside."""
    files = code_files()
    imports = {name: set(re.findall(r"^\s*from \.(\w+) import", text, re.M)) for name, text in files.items()}
    assert all(f"{target}.py" in files for targets in imports.values() for target in targets)
    assert not any(
        re.search(r"^\s*(from \.\.|from \. |import mrp_hf|from mrp_hf)", text, re.M) for text in files.values()
    )
    reached, waiting = set(), ["modeling_mrp"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting.extend(imports[f"{module}.py"])
    assert {f"{module}.py" for module in reached} == set(files)


def test_flattening_touches_imports_only():
    source = "from ..generation.masks_mrp import CLEAN\nfrom .head_mrp import MRPHead\ntext = 'from ..generation'\n"
    expected = "from .masks_mrp import CLEAN\nfrom .head_mrp import MRPHead\ntext = 'from ..generation'\n"
    assert flatten_imports(source) == expected


def test_another_code_version_warns_and_refreshing_ends_it(tiny_model, tmp_path, caplog):
    tiny_model().save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        MRPForDiffusionLM.from_pretrained(tmp_path)
    assert "MRP code" not in caplog.text
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "mrp_code_version": "0"}))
    (tmp_path / "head_mrp.py").write_text("old")
    with caplog.at_level(logging.WARNING):
        model = MRPForDiffusionLM.from_pretrained(tmp_path)
    assert f"saved by version 0 of the MRP code and is loaded by version {CODE_VERSION}" in caplog.text
    refresh_code(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == config
    assert (tmp_path / "head_mrp.py").read_text() == code_files()["head_mrp.py"]
    assert_same(model, MRPForDiffusionLM.from_pretrained(tmp_path))


def test_refreshing_something_else_is_an_error(fixtures, tmp_path):
    with pytest.raises(ValueError, match="holds no MRP checkpoint"):
        refresh_code(fixtures / "sdar")
    with pytest.raises(ValueError, match="holds no MRP checkpoint"):
        refresh_code(tmp_path)


WITHOUT_THE_PACKAGE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mrp_hf", "modeling", "generation"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import torch
from transformers import AutoModel, AutoModelForCausalLM
first, second, third, out = sys.argv[1:]
ids = torch.tensor([[5, 9, 14, 63, 3, 63, 20, 63, 8, 63]])
found = {}
for source, target, auto in ((first, second, AutoModel), (second, third, AutoModelForCausalLM)):
    model = auto.from_pretrained(source, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules"), type(model)
    assert type(model.generation_config).__name__ == "MRPGenerationConfig"
    assert not any(p.requires_grad for p in model.backbone.parameters())
    with torch.no_grad():
        output = model(ids, revealed_ids=ids.flip(1))
    new = {mode: model.generate(ids[:, :6], mrp_mode=mode or None, max_new_tokens=11) for mode in
           ("", "direct", "speculative", "remask")}
    model.save_pretrained(target)
    new |= {"logits": output.logits, "residual_logits": output.residual_logits}
    assert not found or all(torch.equal(found[name], new[name]) for name in new)
    found = new
torch.save(found, out)
"""


def test_remote_code_works_where_the_package_cannot_be_imported(tiny_model, tmp_path):
    """Loaded, run, saved, loaded again, saved again: every folder is the same, and so are all outputs."""
    model = tiny_model(num_mrp_layers=2, mrp_prediction="residual")
    folders = [tmp_path / name for name in ("first", "second", "third")]
    model.save_pretrained(folders[0])
    arguments = [*map(str, folders), str(tmp_path / "out.pt")]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # sums in another order are other floats
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE, *arguments], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    found = torch.load(tmp_path / "out.pt")
    with torch.no_grad():
        output = model(IDS, revealed_ids=IDS.flip(1))
    for name in ("logits", "residual_logits"):
        torch.testing.assert_close(found[name], getattr(output, name), atol=1e-6, rtol=0)
    for mode in ("direct", "speculative", "remask"):
        assert torch.equal(found[mode], model.generate(IDS[:, :6], mrp_mode=mode, max_new_tokens=11)), mode
    assert torch.equal(found[""], model.generate(IDS[:, :6], max_new_tokens=11))
    contents = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1] == contents[2]
    assert {"modeling_mrp.py", "generation_mrp.py", "config.json", "generation_config.json"} < contents[0].keys()
    again = MRPForDiffusionLM.from_pretrained(folders[2])
    assert_same(model, again)


def test_a_head_that_the_config_does_not_know_is_an_error(tiny_model, tmp_path):
    tiny_model(num_mrp_layers=2).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    for layers in (1, 0):
        (tmp_path / "config.json").write_text(json.dumps(fields | {"num_mrp_layers": layers}))
        with pytest.raises(ValueError, match=rf"mrp_head.* is not in a head of {layers} layers"):
            MRPForDiffusionLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("load", [MRPForDiffusionLM.from_pretrained, MRPForDiffusionLM.from_backbone])
def test_damaged_files_are_named(tiny_model, tmp_path, load):
    model = tiny_model()
    (model if load == MRPForDiffusionLM.from_pretrained else model.backbone).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    said = {} if load == MRPForDiffusionLM.from_pretrained else {"mask_token_id": 63, "block_length": 4}
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}.* cannot be read: .*damaged"):
        load(tmp_path, **said)


def test_a_damaged_generation_config_is_an_error(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"the generation_config\.json of .* cannot be read"):
        MRPForDiffusionLM.from_pretrained(tmp_path)


def test_a_damaged_config_of_a_backbone_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"the config\.json of .* cannot be read"):
        MRPForDiffusionLM.from_backbone(tmp_path)


def test_a_checkpoint_that_fits_loads_without_a_word(tiny_model, tmp_path, capfd, caplog):
    tiny_model().save_pretrained(tmp_path)
    capfd.readouterr()
    with caplog.at_level(logging.WARNING):
        MRPForDiffusionLM.from_pretrained(tmp_path)
    # Progress bars are no words.
    shown = [line for line in capfd.readouterr().err.splitlines() if line.strip() and "Loading weights" not in line]
    assert shown == []
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_misfit_is_said_once(tiny_model, tmp_path, capsys, caplog):
    tiny_model(num_mrp_layers=1).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_mrp_layers": 2}))
    with pytest.raises(ValueError, match="missing"):
        MRPForDiffusionLM.from_pretrained(tmp_path)
    assert "LOAD REPORT" not in capsys.readouterr().err + caplog.text


def test_a_backbone_without_a_language_model_head(tiny_model):
    with pytest.raises(ValueError, match="is a Qwen3Model, which has no LM head"):
        MRPForDiffusionLM.from_backbone(tiny_model().backbone.model, mask_token_id=63, block_length=4)
