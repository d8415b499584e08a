"""A backbone family that no table knows: its configuration."""

from transformers import PreTrainedConfig


class StrangeConfig(PreTrainedConfig):
    model_type = "strange"

    vocab_size: int = 24
    hidden_size: int = 16
    intermediate_size: int = 24
    num_attention_heads: int = 2
    num_hidden_layers: int = 2
    max_position_embeddings: int = 128
