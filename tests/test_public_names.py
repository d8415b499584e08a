import importlib.util

import pytest
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

import mrp_hf


def test_public_names():
    assert sorted(mrp_hf.__all__) == [
        "DataCollatorForMRP",
        "MRPConfig",
        "MRPForDiffusionLM",
        "MRPGenerationConfig",
        "MRPGenerationMixin",
        "MRPTrainer",
        "MRPTrainingArguments",
    ]
    assert all(isinstance(getattr(mrp_hf, name), type) for name in mrp_hf.__all__)


def test_importing_registers_with_the_auto_classes(tiny_model):
    config = tiny_model().config
    assert CONFIG_MAPPING["mrp"] is mrp_hf.MRPConfig
    for auto in (AutoModel, AutoModelForCausalLM):
        assert type(auto.from_config(config)) is mrp_hf.MRPForDiffusionLM


@pytest.mark.parametrize("name", ["modeling", "generation"])
def test_the_travelling_folders_are_inside_the_package(name):
    assert importlib.util.find_spec(f"mrp_hf.{name}") is not None
