"""What all tests share. Nothing here touches a network."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mrp_hf.demo.tokenizer import build_tokenizer
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Folder of the upstream reference fixtures; what they hold is in its README.md."""
    return Path(__file__).parent / "fixtures"


def build_tiny_model(
    seed: int = 0,
    num_mrp_layers: int = 1,
    block_length: int = 4,
    vocab_size: int = 64,
    hidden_size: int = 32,
    num_hidden_layers: int = 2,
    num_attention_heads: int = 2,
    num_key_value_heads: int = 1,
    max_position_embeddings: int = 512,
    tie_word_embeddings: bool = False,
    initializer_range: float = 0.3,
    attn_implementation: str = "sdpa",
    **overrides: Any,
) -> MRPForDiffusionLM:
    """An untrained model on a random Qwen3 backbone: eval mode, float32, on the CPU.

    The last id of the vocabulary is the mask token, the two before are end-of-sequence and padding. Weights are drawn
    wide, so that logits differ enough for greedy choices to be stable. `overrides` go to `from_backbone`.
    """
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_key_value_heads,
        head_dim=hidden_size // num_attention_heads,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie_word_embeddings,
        initializer_range=initializer_range,
        pad_token_id=vocab_size - 2,
        eos_token_id=vocab_size - 3,
        attn_implementation=attn_implementation,
    )
    settings = {"mask_token_id": vocab_size - 1, "mrp_initializer_range": initializer_range} | overrides
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MRPForDiffusionLM.from_backbone(
            Qwen3ForCausalLM(config), num_mrp_layers=num_mrp_layers, block_length=block_length, **settings
        )


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., MRPForDiffusionLM]:
    """The function `build_tiny_model`, whose arguments say what the model is like."""
    return build_tiny_model


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder like the shipped one, with the demo's tokenizer, but tiny and untrained."""
    tokenizer = build_tokenizer()
    model = build_tiny_model(vocab_size=len(tokenizer), block_length=16, mask_token_id=tokenizer.mask_token_id)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.max_new_tokens = 32
    folder = tmp_path_factory.mktemp("demo-checkpoint")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
