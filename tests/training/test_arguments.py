"""Defaults of the recipe, and values that are refused."""

import pytest
from transformers import HfArgumentParser

from mrp_hf.training import MRPTrainingArguments


def arguments(tmp_path, **fields):
    return MRPTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **fields)


def test_defaults_are_the_published_recipe(tmp_path):
    args = arguments(tmp_path)
    assert (args.num_lookahead_steps, args.reveal_min, args.reveal_max) == (1, 1, 1)
    assert args.learning_rate == 1e-3
    assert args.lr_scheduler_type == "cosine_with_min_lr"
    assert args.lr_scheduler_kwargs == {"min_lr_rate": 0.1}
    assert args.num_train_epochs == 1


def test_noise_seed_is_the_seed_unless_given(tmp_path):
    assert arguments(tmp_path, seed=7).noise_seed == 7
    assert arguments(tmp_path, seed=7, noise_seed=0).noise_seed == 0


def test_another_schedule_takes_no_floor(tmp_path):
    assert arguments(tmp_path, lr_scheduler_type="linear").lr_scheduler_kwargs is None
    assert arguments(tmp_path, lr_scheduler_kwargs={"min_lr": 1e-5}).lr_scheduler_kwargs == {"min_lr": 1e-5}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_lookahead_steps": 0}, "`num_lookahead_steps` must be an integer of at least 1, got 0"),
        ({"num_lookahead_steps": 1.5}, "`num_lookahead_steps` .* got 1.5"),
        ({"reveal_min": 0}, "`reveal_min` .* got 0"),
        ({"reveal_min": 3, "reveal_max": 2}, "`reveal_min` is 3 and `reveal_max` 2"),
        ({"noise_seed": -1}, "`noise_seed` .* got -1"),
        ({"activation_checkpointing": True}, "`activation_checkpointing=True` is not supported"),
        ({"average_tokens_across_devices": False}, "`average_tokens_across_devices=False` is not supported"),
        ({"label_smoothing_factor": 0.1}, "`label_smoothing_factor=0.1` is not supported"),
    ],
)
def test_refuses_by_name(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **fields)


def test_command_line(tmp_path):
    line = ["--output_dir", str(tmp_path), "--use_cpu", "--num_lookahead_steps", "3", "--reveal_max", "4"]
    (args,) = HfArgumentParser(MRPTrainingArguments).parse_args_into_dataclasses(line)
    assert (args.num_lookahead_steps, args.reveal_max) == (3, 4)
    assert args.to_dict()["num_lookahead_steps"] == 3
