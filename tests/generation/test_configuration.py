"""`MRPGenerationConfig`: files, layers and priorities."""

import json

import pytest
import torch
from transformers import GenerationConfig

from mrp_hf import MRPGenerationConfig
from mrp_hf.generation.configuration_generation_mrp import resolve

from .helpers import PAD, answers, counts, draw_prompt, run

FIELDS = {
    "mrp_mode": "speculative",
    "mrp_num_lookahead_steps": 5,
    "mrp_drafter": "backbone",
    "block_length": 8,
    "denoising_steps": 4,
    "remasking_strategy": "sequential",
    "confidence_threshold": 0.7,
    "remask_rule": "confidence",
    "remask_threshold": 0.2,
    "tie_ceiling": 0.9,
    "mrp_num_candidates": 8,
    "entropy_bound": 0.3,
    "approximate_cache": "dual",
    "seed": 17,
}


def test_every_field_has_a_value_in_these_tests():
    assert set(FIELDS) == set(MRPGenerationConfig.MRP_FIELDS)


@pytest.mark.parametrize("seed", [17, [1, 2], None])
def test_round_trip(tmp_path, seed):
    fields = FIELDS | {"seed": seed}
    config = MRPGenerationConfig(**fields, max_new_tokens=9, eos_token_id=[3, 4], temperature=0.5, do_sample=True)
    config.save_pretrained(tmp_path)
    loaded = MRPGenerationConfig.from_pretrained(tmp_path)
    assert type(loaded) is MRPGenerationConfig
    assert {name: getattr(loaded, name) for name in fields} == fields
    assert (loaded.max_new_tokens, loaded.eos_token_id, loaded.temperature) == (9, [3, 4], 0.5)
    assert loaded == config


def test_file_of_an_untouched_config_names_no_option(tmp_path):
    MRPGenerationConfig().save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "generation_config.json").read_text())
    assert not [name for name in FIELDS if stored.get(name) is not None]


def test_file_of_a_plain_config_loads(tmp_path):
    GenerationConfig(max_new_tokens=9, eos_token_id=3).save_pretrained(tmp_path)
    loaded = MRPGenerationConfig.from_pretrained(tmp_path, mrp_mode="direct")
    assert (loaded.max_new_tokens, loaded.eos_token_id, loaded.mrp_mode) == (9, 3, "direct")


def test_unknown_field_in_a_file(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"mrp_mod": "direct"}')
    with pytest.raises(ValueError, match="did you mean `mrp_mode`"):
        MRPGenerationConfig.from_pretrained(tmp_path)


def test_not_made_from_a_model_config(small_model):
    with pytest.raises(NotImplementedError, match="generation_config"):
        MRPGenerationConfig.from_model_config(small_model().config)


# Layers


def test_priorities():
    own = MRPGenerationConfig(mrp_mode="direct", block_length=2, confidence_threshold=0.1, top_k=3)
    given = MRPGenerationConfig(block_length=3, confidence_threshold=0.2)
    found = resolve(own, given, {"confidence_threshold": 0.3})
    assert (found.mrp_mode, found.block_length, found.confidence_threshold, found.top_k) == ("direct", 3, 0.3, 3)
    assert own.block_length == 2
    assert given.confidence_threshold == 0.2


def test_none_as_keyword_unsets():
    own = MRPGenerationConfig(mrp_mode="direct", eos_token_id=3, confidence_threshold=0.1)
    found = resolve(own, None, {"mrp_mode": None, "eos_token_id": None, "confidence_threshold": None})
    assert (found.mrp_mode, found.eos_token_id, found.confidence_threshold) == (None, None, 0.9)


def test_defaults():
    found = resolve(None, None, {})
    assert found.mrp_mode is None
    assert found.mrp_num_lookahead_steps == 3
    assert found.remasking_strategy == "low_confidence_static"
    assert found.confidence_threshold == 0.9
    assert found.max_new_tokens == 256
    assert (found.block_length, found.denoising_steps, found.remask_threshold, found.seed) == (None,) * 4


def test_remask_mode_brings_its_own_rule():
    assert resolve(None, None, {"mrp_mode": "remask"}).remasking_strategy == "low_confidence_dynamic"
    own = MRPGenerationConfig(remasking_strategy="sequential")
    assert resolve(own, None, {"mrp_mode": "remask"}).remasking_strategy == "sequential"


@pytest.mark.parametrize(
    ("own", "given", "fields", "expected"),
    [
        ({}, {}, {}, (256, None)),
        ({"max_length": 20}, {}, {}, (None, 20)),
        ({"max_length": 20}, {"max_new_tokens": 5}, {}, (5, None)),
        ({"max_new_tokens": 5}, {}, {"max_length": 20}, (None, 20)),
        ({"max_new_tokens": 5}, {"max_length": 20}, {"max_new_tokens": 7}, (7, None)),
        ({"max_new_tokens": 5}, {}, {"max_new_tokens": None}, (256, None)),
    ],
)
def test_strongest_length_counts(own, given, fields, expected):
    found = resolve(MRPGenerationConfig(**own), MRPGenerationConfig(**given), fields)
    assert (found.max_new_tokens, found.max_length) == expected


@pytest.fixture
def model(small_model):
    return small_model()


PROMPT = draw_prompt(6)


def test_config_of_the_model_given_config_and_keywords(model):
    """The same settings from any layer decode alike."""
    expected = run(model, [PROMPT], max_new_tokens=9, mrp_mode="direct", block_length=8)
    given = run(
        model, [PROMPT], generation_config=MRPGenerationConfig(max_new_tokens=9, mrp_mode="direct", block_length=8)
    )
    model.generation_config.update(max_new_tokens=9, mrp_mode="direct", block_length=2)
    mixed = run(model, [PROMPT], block_length=8)
    assert answers(expected) == answers(given) == answers(mixed)
    assert counts(expected) == counts(given) == counts(mixed)
    plain = run(model, [PROMPT], mrp_mode=None)
    assert counts(plain)["head"] == 0
    assert counts(mixed)["head"] > 0


def test_plain_config_with_our_fields_as_attributes(model):
    config = GenerationConfig(max_new_tokens=9)
    config.mrp_mode, config.block_length = "direct", 8
    expected = run(model, [PROMPT], max_new_tokens=9, mrp_mode="direct", block_length=8)
    found = run(model, [PROMPT], generation_config=config)
    assert answers(found) == answers(expected)
    assert counts(found) == counts(expected)


def test_settings_of_a_checkpoint(model, tmp_path):
    """What `generation_config.json` says holds after loading, a keyword still stands over it."""
    model = model.float()
    model.generation_config.update(max_new_tokens=5, mrp_mode="direct", mrp_num_lookahead_steps=2)
    ids = torch.tensor([PROMPT])
    settings = {"attention_mask": torch.ones_like(ids), "pad_token_id": PAD, "return_dict_in_generate": True}
    expected = model.generate(ids, **settings)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert type(loaded.generation_config) is MRPGenerationConfig
    found = loaded.generate(ids, **settings)
    assert torch.equal(found.sequences, expected.sequences)
    assert found.mrp_stats.head_forwards.tolist() == expected.mrp_stats.head_forwards.tolist() != [0]
    assert loaded.generate(ids, mrp_mode=None, **settings).mrp_stats.head_forwards.tolist() == [0]


def test_drafter_follows_the_training_of_the_head(model):
    fields = {"max_new_tokens": 9, "mrp_mode": "speculative"}
    assert counts(run(model, [PROMPT], **fields))["head"] == 0
    assert counts(run(model, [PROMPT], mrp_drafter="head", **fields))["head"] > 0
    model.config.mrp_head_trained = True
    assert counts(run(model, [PROMPT], **fields))["head"] > 0
    assert counts(run(model, [PROMPT], mrp_drafter="backbone", **fields))["head"] == 0
