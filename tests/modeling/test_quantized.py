"""A backbone that is quantised as it is loaded, by transformers' own loader."""

import logging

import pytest
import torch
from transformers import QuantoConfig

from mrp_hf import MRPForDiffusionLM

from ..families import EOS, PAD, write_checkpoint

IDS = torch.randint(0, EOS, (2, 7), generator=torch.Generator().manual_seed(0))
MODES = ({"mrp_mode": "direct"}, {"mrp_mode": "remask", "confidence_threshold": 0.2})


@pytest.mark.parametrize("family", ["sdar", "llada", "Dream"])
def test_int8_weights(tmp_path, family, caplog):
    folder = write_checkpoint(family, 0, tmp_path)
    exact = MRPForDiffusionLM.from_backbone(folder, num_mrp_layers=0, dtype=torch.float32)
    torch.manual_seed(0)
    model = MRPForDiffusionLM.from_backbone(
        folder,
        num_mrp_layers=1,
        dtype=torch.float32,
        quantization_config=QuantoConfig(weights="int8"),
    )
    assert "QBytes" in type(model.backbone.model.layers[0].mlp.up_proj.weight).__name__
    assert type(model.mrp_head.eh_proj.weight) is torch.nn.Parameter
    expected, found = exact(IDS).logits, model(IDS).logits
    assert not torch.equal(found, expected)
    assert (found - expected).abs().mean() < 0.1 * expected.abs().mean()

    def generate(**fields):
        settings = {"max_new_tokens": 9, "pad_token_id": PAD, "eos_token_id": None}
        return model.generate(IDS, attention_mask=torch.ones_like(IDS), **settings, **fields)

    plain = generate()
    for drafter in ("head", "backbone"):
        assert torch.equal(generate(mrp_mode="speculative", mrp_drafter=drafter), plain)
    assert all(generate(**fields).shape == plain.shape for fields in MODES)

    model.save_pretrained(tmp_path / "head", head_only=True)
    with caplog.at_level(logging.WARNING):
        again = MRPForDiffusionLM.from_pretrained(tmp_path / "head", backbone=model.backbone)
    assert "cannot be checked" in caplog.text
    assert torch.equal(again.mrp_head.eh_proj.weight, model.mrp_head.eh_proj.weight)
