"""Every family's checkpoints load into the native class and give its logits."""

import json
import logging

import pytest
import torch

from mrp_hf import MRPForDiffusionLM

from ..families import MAKERS, MASK, VOCABULARY, exact_dtype, make_native, write_checkpoint

SEEDS = range(3)
EXPECTED = {
    # attention, shift, block length
    "sdar": ("block_causal", False, 4),
    "sdar_moe": ("block_causal", False, 4),
    "llada": ("bidirectional", False, None),
    "Dream": ("bidirectional", True, None),
    "Fast_dLLM_Qwen": ("block_causal", True, 4),
    "a2d-qwen3-mdlm": ("bidirectional", False, None),
    "a2d-qwen3-bd3lm": ("block_causal", False, 4),
    "a2d-qwen2-bd3lm": ("block_causal", False, 4),
    "a2d-llama-mdlm": ("bidirectional", False, None),
    "bert": ("bidirectional", False, None),
    "modernbert": ("bidirectional", False, None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return lambda family, seed: write_checkpoint(family, seed, tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", MAKERS)
def test_logits_are_the_native_model_s(folder, family, seed, attention):
    native, fields = make_native(family, seed)
    model = MRPForDiffusionLM.from_backbone(
        folder(family, seed), num_mrp_layers=1, dtype=torch.float32, attn_implementation=attention
    )
    config = model.config
    assert (config.attention_pattern, config.logit_shift, config.block_length) == EXPECTED[family]
    assert (config.mask_token_id, config.vocab_size) == (MASK, VOCABULARY)
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())

    ids = torch.randint(0, VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(seed))
    places = torch.arange(11)
    visible = torch.ones(11, 11, dtype=torch.bool)
    if config.attention_pattern == "block_causal":
        visible = places[None, :] // 4 <= places[:, None] // 4
    mask = torch.zeros(2, 1, 11, 11).masked_fill(~visible, torch.finfo(torch.float32).min)
    if family == "modernbert":  # its own masks, from a padding mask
        expected = native(ids, attention_mask=torch.ones_like(ids)).logits
    else:
        expected = native(ids, attention_mask=mask).logits
    if fields.get("scale_logits"):
        expected = expected / native.config.hidden_size**0.5
    output = model(ids)
    given = output.logits
    if config.logit_shift:
        expected, given = expected[:, :-1], given[:, 1:]
    torch.testing.assert_close(given, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(model.project(output.last_hidden_state), output.logits)
    # Padding on the left changes nothing.
    padded = torch.cat([torch.full((2, 3), 5), ids], dim=1)
    real = torch.cat([torch.zeros(2, 3), torch.ones(2, 11)], dim=1).long()
    torch.testing.assert_close(model(padded, attention_mask=real).logits[:, 3:], output.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", MAKERS)
def test_a_model_with_a_head_round_trips(folder, family, tmp_path):
    model = MRPForDiffusionLM.from_backbone(folder(family, 0), num_mrp_layers=2, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    again = MRPForDiffusionLM.from_pretrained(tmp_path)
    assert again.config.to_diff_dict() == model.config.to_diff_dict()
    ids = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    for name in ("logits", "last_hidden_state", "residual_logits", "mrp_hidden_state"):
        one, other = (getattr(each(ids, revealed_ids=ids.flip(1)), name) for each in (model, again))
        assert torch.equal(one, other), name


@pytest.mark.parametrize("family", ["llada", "sdar_moe", "modernbert"])
def test_a_backbone_that_is_saved_alone_is_a_native_model(folder, family, tmp_path):
    model = MRPForDiffusionLM.from_backbone(folder(family, 0), num_mrp_layers=0, dtype=torch.float32)
    model.backbone.save_pretrained(tmp_path)
    again = type(model.backbone).from_pretrained(tmp_path, dtype=torch.float32)
    stored = again.state_dict()
    assert all(torch.equal(stored[name], tensor) for name, tensor in model.backbone.state_dict().items())


@pytest.mark.parametrize("family", MAKERS)
def test_residual_logits_are_the_head_s_through_the_lm_head_without_bias(folder, family):
    model = MRPForDiffusionLM.from_backbone(folder(family, 1), num_mrp_layers=1, dtype=exact_dtype(family))
    ids = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    output = model(ids, revealed_ids=ids.flip(1))
    corrected = model.project(output.mrp_hidden_state)
    torch.testing.assert_close(corrected, output.logits + output.residual_logits, atol=1e-5, rtol=1e-5)
    predicted = output.mrp_hidden_state - output.last_hidden_state
    weight = model.get_output_embeddings().weight
    expected = predicted @ weight.T * model.config.logit_scale
    torch.testing.assert_close(output.residual_logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "sdar_moe"])
def test_layers_that_cannot_be_a_head_s(folder, family):
    with pytest.raises(ValueError, match=r"`head_initialization` is 'backbone', but layers of a .* use 'normal'"):
        MRPForDiffusionLM.from_backbone(folder(family, 0), head_initialization="backbone")


@pytest.mark.parametrize("family", ["llada", "Dream"])
def test_a_head_that_starts_from_the_backbone_s_last_layers(folder, family):
    model = MRPForDiffusionLM.from_backbone(folder(family, 2), num_mrp_layers=1, head_initialization="backbone")
    last = model.backbone.base_model.layers[-1].state_dict()
    assert all(torch.equal(last[name], tensor) for name, tensor in model.mrp_head.layers[0].state_dict().items())


@pytest.mark.parametrize("family", ["llada", "sdar_moe", "Fast_dLLM_Qwen"])
def test_one_line_says_what_was_chosen(folder, family, caplog):
    with caplog.at_level(logging.INFO):
        MRPForDiffusionLM.from_backbone(folder(family, 0), num_mrp_layers=0)
    native = {"llada": "llama", "sdar_moe": "qwen3_moe", "Fast_dLLM_Qwen": "qwen2"}[family]
    pattern, shift, _ = EXPECTED[family]
    line = next(record.message for record in caplog.records if record.message.startswith("Backbone"))
    assert f"loaded into the native {native}, {pattern}" in line
    assert ("shifted by one" in line) is shift
    assert f"mask token {MASK}" in line


@pytest.mark.parametrize("family", ["sdar", "llada", "Dream", "bert", "modernbert"])
def test_weights_of_more_layers_than_the_config_has(folder, family):
    name = "n_layers" if family == "llada" else "num_hidden_layers"
    for seed in range(9):
        path = folder(family, seed)
        fields = json.loads((path / "config.json").read_text())
        if fields[name] > 1:
            break
    changed = {name: fields[name] - 1, "layer_types": None}
    (path / "config.json").write_text(json.dumps(fields | changed))
    with pytest.raises(ValueError, match="belongs to a layer that the config does not have"):
        MRPForDiffusionLM.from_backbone(path, num_mrp_layers=0)
