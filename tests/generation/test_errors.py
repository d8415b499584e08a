"""Wrong calls: each is a `ValueError` or `TypeError` that names the argument, before the model has run."""

import pytest
import torch
from transformers import GenerationConfig

from mrp_hf import MRPGenerationConfig

from .helpers import EOS, MASK, PAD, VOCABULARY, draw_prompt, pad

IDS, REAL = pad([draw_prompt(5), draw_prompt(9)])


@pytest.fixture(scope="module")
def model(small_model):
    return watched(small_model(max_position_embeddings=64))


@pytest.fixture(scope="module")
def headless(small_model):
    return watched(small_model(num_mrp_layers=0))


def watched(model):
    model.forwards = []
    model.backbone.register_forward_hook(lambda *_: model.forwards.append(1))
    model.backbone.model.register_forward_hook(lambda *_: model.forwards.append(1))
    return model


def assert_refused(model, *words, error=ValueError, ids=IDS, mask=REAL, **fields):
    model.forwards.clear()
    with pytest.raises(error) as caught:
        model.generate(ids, attention_mask=mask, **{"max_new_tokens": 4, "pad_token_id": PAD} | fields)
    for word in words:
        assert word in str(caught.value)
    assert not model.forwards


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mrp_mod": "direct"}, ["`mrp_mod`", "`mrp_mode`"]),
        ({"max_new_token": 3}, ["`max_new_token`", "`max_new_tokens`"]),
        ({"blocklength": 3}, ["`blocklength`", "`block_length`"]),
        ({"confidence": 0.3}, ["`confidence`", "`confidence_threshold`"]),
        ({"qqq": 1}, ["`qqq`", "MRPGenerationConfig"]),
        ({"mrp_mode": "fast"}, ["`mrp_mode`", "'fast'", "direct, speculative, remask"]),
        ({"remasking_strategy": "best"}, ["`remasking_strategy`", "'best'", "low_confidence_static"]),
        ({"mrp_drafter": "tail"}, ["`mrp_drafter`", "'tail'", "head, backbone"]),
        ({"remask_rule": "none"}, ["`remask_rule`", "'none'", "confidence"]),
        ({"block_length": 0}, ["`block_length`", "at least 1"]),
        ({"block_length": 2.0}, ["`block_length`", "at least 1"]),
        ({"denoising_steps": 0}, ["`denoising_steps`", "at least 1"]),
        ({"denoising_steps": 5}, ["`denoising_steps`", "5", "4 tokens"]),
        ({"denoising_steps": 9, "block_length": 8}, ["`denoising_steps`", "9", "8 tokens"]),
        ({"mrp_num_lookahead_steps": 0}, ["`mrp_num_lookahead_steps`", "at least 1"]),
        ({"mrp_num_lookahead_steps": True}, ["`mrp_num_lookahead_steps`", "at least 1"]),
        ({"confidence_threshold": 1.1}, ["`confidence_threshold`", "1.1", "from 0 to 1"]),
        ({"confidence_threshold": -0.1}, ["`confidence_threshold`", "from 0 to 1"]),
        ({"confidence_threshold": float("nan")}, ["`confidence_threshold`", "from 0 to 1"]),
        ({"confidence_threshold": "0.9"}, ["`confidence_threshold`", "from 0 to 1"]),
        ({"remask_threshold": 2}, ["`remask_threshold`", "from 0 to 1"]),
        ({"temperature": -1.0, "do_sample": True}, ["`temperature`", "0 (greedy) or more"]),
        ({"temperature": float("inf"), "do_sample": True}, ["`temperature`", "inf", "finite"]),
        ({"temperature": "hot", "do_sample": True}, ["`temperature`", "'hot'"]),
        ({"mrp_mode": ["direct"]}, ["`mrp_mode`", "['direct']"]),
        ({"max_new_tokens": 3.5}, ["`max_new_tokens`", "3.5", "whole number"]),
        ({"max_new_tokens": True}, ["`max_new_tokens`", "True"]),
        ({"max_new_tokens": "8"}, ["`max_new_tokens`", "'8'"]),
        ({"suppress_tokens": 5}, ["`suppress_tokens`", "list of token ids"]),
        ({"pad_token_id": VOCABULARY}, ["`pad_token_id`", str(VOCABULARY), "ids go from 0"]),
        ({"top_p": 1.5, "do_sample": True}, ["top_p", "1.5"]),
        ({"top_p": -0.5, "do_sample": True}, ["top_p", "-0.5"]),
        ({"min_p": 1.5, "do_sample": True}, ["min_p", "1.5"]),
        ({"tie_ceiling": 1.5}, ["`tie_ceiling`", "1.5"]),
        ({"entropy_bound": -1}, ["`entropy_bound`", "-1", "nats"]),
        ({"top_k": -1, "do_sample": True}, ["top_k", "-1"]),
        ({"seed": -1}, ["`seed`", "2**62"]),
        ({"seed": 2**62, "do_sample": True}, ["`seed`", "2**62"]),
        ({"seed": 0.5}, ["`seed`", "whole number"]),
        ({"seed": [1, "2"]}, ["`seed`", "whole number"]),
        ({"seed": [1], "do_sample": True}, ["`seed`", "1 seeds for 2 prompts"]),
        ({"seed": [1, 2, 3], "do_sample": True}, ["`seed`", "3 seeds for 2 prompts"]),
        ({"seed": [1, 2, 3]}, ["`seed`", "3 seeds for 2 prompts"]),
        ({"seed": [1] * 4, "do_sample": True, "num_return_sequences": 2}, ["`seed`", "4 seeds for 2 prompts"]),
        ({"num_return_sequences": 2}, ["`num_return_sequences`", "do_sample"]),
        ({"num_return_sequences": 0, "do_sample": True}, ["`num_return_sequences`", "at least 1"]),
        ({"max_new_tokens": 0}, ["`max_new_tokens`"]),
        ({"max_new_tokens": 60}, ["64", "`max_new_tokens`"]),
        ({"max_new_tokens": None, "max_length": 9}, ["`max_length`", "9", "max_new_tokens"]),
        ({"max_new_tokens": None, "max_length": 65}, ["64", "68"]),
        ({"suppress_tokens": [3, VOCABULARY]}, ["`suppress_tokens`", str(VOCABULARY)]),
        ({"suppress_tokens": list(range(MASK))}, ["`suppress_tokens`"]),
    ],
    ids=str,
)
def test_fields(model, fields, words):
    assert_refused(model, *words, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_beams": 2},
        {"repetition_penalty": 1.2},
        {"no_repeat_ngram_size": 2},
        {"min_length": 3},
        {"min_new_tokens": 3},
        {"stop_strings": ["x"]},
        {"max_time": 1.0},
        {"output_scores": True},
        {"output_logits": True},
        {"output_hidden_states": True},
        {"output_attentions": True},
        {"guidance_scale": 2.0},
        {"typical_p": 0.5},
        {"bad_words_ids": [[1]]},
        {"sequence_bias": {(1,): 1.0}},
        {"begin_suppress_tokens": [1]},
        {"forced_eos_token_id": 1},
        {"prompt_lookup_num_tokens": 2},
        {"penalty_alpha": 0.5},
        {"encoder_repetition_penalty": 1.5},
        {"exponential_decay_length_penalty": (1, 1.5)},
        {"cache_implementation": "static"},
        {"num_beam_groups": 2},
    ],
    ids=str,
)
def test_fields_that_cannot_be_honoured(model, fields):
    (name,) = fields
    assert_refused(model, name, **fields)


@pytest.mark.parametrize("name", ["logits_processor", "stopping_criteria", "assistant_model", "past_key_values"])
def test_arguments_that_cannot_be_honoured(model, name):
    assert_refused(model, name, **{name: []})


def test_token_types_of_a_model_that_has_none(model):
    assert_refused(model, "`token_type_ids`", "return_token_type_ids=False", token_type_ids=torch.zeros_like(IDS))


def test_neutral_values_are_no_request(model):
    settings = {
        "num_beams": 1,
        "repetition_penalty": 1.0,
        "min_length": 0,
        "output_scores": False,
        "bad_words_ids": None,
    }
    found = model.generate(IDS, attention_mask=REAL, max_new_tokens=4, pad_token_id=PAD, **settings)
    assert found.shape[0] == 2
    assert model.forwards  # the hooks that the other tests rely on do count


@pytest.mark.parametrize(
    ("ids", "mask", "words"),
    [
        (None, None, ["`input_ids`", "missing"]),
        ([[1, 2]], None, ["`input_ids`", "list"]),
        (torch.tensor([1, 2]), None, ["`input_ids`", "(2,)"]),
        (torch.ones(1, 2, 3, dtype=torch.long), None, ["`input_ids`", "(1, 2, 3)"]),
        (torch.ones(1, 2), None, ["`input_ids`", "Tensor"]),
        (torch.ones(0, 2, dtype=torch.long), None, ["`input_ids`", "no rows"]),
        (torch.tensor([[1, VOCABULARY]]), None, ["`input_ids`", str(VOCABULARY)]),
        (torch.tensor([[1, -1]]), None, ["`input_ids`", "-1"]),
        (IDS, REAL[:1], ["`attention_mask`", "(1, 9)", "(2, 9)"]),
        (IDS, REAL[:, :5], ["`attention_mask`", "(2, 5)"]),
        (IDS, torch.ones(2, 1, 9, 9), ["`attention_mask`", "(2, 1, 9, 9)"]),
        (IDS, REAL.tolist(), ["`attention_mask`", "list"]),
    ],
    ids=lambda value: str(tuple(value.shape)) if isinstance(value, torch.Tensor) else None,
)
def test_inputs(model, ids, mask, words):
    assert_refused(model, *words, ids=ids, mask=mask)


def test_a_mask_of_other_values(model):
    assert_refused(model, "`attention_mask`", "0 and 1", mask=(1 - REAL) * torch.finfo(torch.float32).min)
    assert_refused(model, "`attention_mask`", "0 and 1", mask=REAL * 2)


def test_no_special_tokens_at_all(model):
    output = model.generate(IDS[:1], attention_mask=REAL[:1], max_new_tokens=2, pad_token_id=None, eos_token_id=[])
    assert output.shape == (1, IDS.shape[1] + 2)


def test_prompt_longer_than_the_model(model):
    ids = torch.ones(1, 70, dtype=torch.long)
    assert_refused(model, "70 tokens", "64", ids=ids, mask=torch.ones_like(ids))


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"mrp_mode": "direct"}, "mrp_mode='direct'"),
        ({"mrp_mode": "remask"}, "mrp_mode='remask'"),
        ({"mrp_mode": "speculative", "mrp_drafter": "head"}, "mrp_drafter='head'"),
    ],
)
def test_no_head(headless, fields, asked):
    assert_refused(headless, asked, "no", "from_backbone", "mrp_drafter='backbone'", **fields)


def test_streamer_of_two_rows(model):
    class Streamer:
        def put(self, value):
            raise AssertionError("nothing should be streamed")

        end = put

    assert_refused(model, "`streamer`", "2", streamer=Streamer())


def test_streamer_of_two_sequences(model):
    fields = {"do_sample": True, "num_return_sequences": 2, "streamer": object()}
    assert_refused(model, "`streamer`", "2", ids=IDS[:1], mask=REAL[:1], **fields)


def test_what_is_no_streamer(model):
    assert_refused(model, "`streamer` is a str", "`put` and `end`", ids=IDS[:1], mask=REAL[:1], streamer="x")


def test_generation_config_of_another_kind(model):
    assert_refused(model, "`generation_config`", "dict", error=TypeError, generation_config={"max_new_tokens": 3})


def test_unknown_attribute_of_a_config(model):
    config = GenerationConfig()
    config.mrp_mod = "direct"
    assert_refused(model, "`mrp_mod`", "`mrp_mode`", generation_config=config)


def test_wrong_value_in_a_plain_config(model):
    config = GenerationConfig()
    config.mrp_mode = "fast"
    assert_refused(model, "`mrp_mode`", "'fast'", generation_config=config)


def test_wrong_value_when_the_config_is_made():
    with pytest.raises(ValueError, match=r"`block_length` is 0: give a whole number"):
        MRPGenerationConfig(block_length=0)
    with pytest.raises(ValueError, match=r"`mrp_mdoe` is no generation option: did you mean `mrp_mode`\?"):
        MRPGenerationConfig(mrp_mdoe="direct")


def test_wrong_value_set_later(model):
    config = MRPGenerationConfig()
    config.mrp_num_lookahead_steps = 0
    assert_refused(model, "`mrp_num_lookahead_steps`", generation_config=config)


def test_eos_outside_the_vocabulary_never_comes(model):
    fields = {"attention_mask": REAL, "max_new_tokens": 4, "pad_token_id": PAD}
    free = model.generate(IDS, eos_token_id=None, **fields)
    assert torch.equal(model.generate(IDS, eos_token_id=[-1, 10**6], **fields), free)
    assert model.generation_config.eos_token_id == EOS
