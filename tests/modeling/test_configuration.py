import json

import pytest
from transformers import AutoConfig, Qwen3Config

from mrp_hf import MRPConfig

SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 5,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 77,
}


def make_config(**fields):
    return MRPConfig(**{"backbone_config": Qwen3Config(**SMALL), "mask_token_id": 19, "block_length": 4} | fields)


def test_defaults_and_what_the_backbone_says():
    config = make_config()
    assert (config.num_mrp_layers, config.attention_pattern, config.mrp_prediction) == (3, "block_causal", "residual")
    assert (config.logit_shift, config.mrp_head_trained, config.mrp_initializer_range) == (False, False, 0.02)
    assert (config.vocab_size, config.hidden_size) == (20, 8)
    assert (config.num_backbone_layers, config.max_position_embeddings) == (5, 77)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mask_token_id", 20),
        ("mask_token_id", -1),
        ("mask_token_id", None),
        ("mask_token_id", 1.5),
        ("block_length", 0),
        ("block_length", None),
        ("block_length", True),
        ("num_mrp_layers", -1),
        ("attention_pattern", "causal"),
        ("mrp_prediction", "both"),
        ("mrp_initializer_range", 0.0),
        ("logit_scale", 0.0),
        ("logit_shift", "yes"),
        ("mrp_head_trained", 1),
    ],
)
def test_a_wrong_value_is_named(field, value):
    with pytest.raises(ValueError, match=f"`{field}` must be .*{value!r}"):
        make_config(**{field: value})


def test_only_a_bidirectional_backbone_may_have_no_block_length():
    config = make_config(attention_pattern="bidirectional", block_length=None)
    assert config.block_length is None
    with pytest.raises(ValueError, match="`block_length` must be at least 1, got None"):
        make_config(block_length=None)


def test_backbone_config_is_required_and_must_be_native():
    with pytest.raises(ValueError, match=r"`backbone_config` is missing.*from_backbone"):
        MRPConfig(mask_token_id=1, block_length=4)
    with pytest.raises(ValueError, match="model_type='sdar'"):
        make_config(backbone_config={**SMALL, "model_type": "sdar"})


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path, tied):
    backbone = Qwen3Config(
        **SMALL, tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": 7.0}
    )
    backbone.name_or_path = "/somewhere/private"
    config = make_config(backbone_config=backbone, num_mrp_layers=0, mrp_prediction="direct", mrp_head_trained=True)
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, MRPConfig)
    assert isinstance(again.backbone_config, Qwen3Config)
    assert again.to_diff_dict() == config.to_diff_dict()
    assert again.backbone_config.tie_word_embeddings is tied
    assert again.backbone_config.rope_parameters["rope_theta"] == 7.0
    assert "private" not in (tmp_path / "config.json").read_text()


def test_a_live_backbone_config_keeps_its_attention_implementation():
    backbone = Qwen3Config(**SMALL, attn_implementation="eager")
    assert make_config(backbone_config=backbone)._attn_implementation == "eager"
    assert backbone._attn_implementation == "eager"


def test_saved_fields_are_plain_json(tmp_path):
    make_config().save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["model_type"] == "mrp"
    assert fields["backbone_config"]["model_type"] == "qwen3"
    assert fields["mrp_code_version"]
