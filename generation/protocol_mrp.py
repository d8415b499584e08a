"""What the decoding loops ask of a model. `MRPForDiffusionLM` offers it; so may any other class."""

from typing import Protocol

import torch
from torch import Tensor
from transformers import Cache


class DiffusionLMConfig(Protocol):
    """The fields of a model's config that decoding reads."""

    vocab_size: int
    mask_token_id: int
    block_length: int | None
    attention_pattern: str
    logit_shift: bool
    num_mrp_layers: int
    num_backbone_layers: int
    backbone_caches: bool
    max_position_embeddings: int
    has_token_types: bool
    mrp_head_trained: bool


class DiffusionLM(Protocol):
    """A frozen diffusion backbone with an optional MRP head.

    Hidden states are inputs of the LM head's last linear layer, so that ``project(h)`` are the backbone's logits A and
    ``project(mrp_step(...))`` the corrected logits A + C: where the projection is linear, adding hidden states adds
    logits, and one projection gives the sum.
    """

    config: DiffusionLMConfig

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def backbone_hidden_states(
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Hidden states (rows, queries, hidden) of `input_ids` (rows, queries) under an additive 4D mask."""
        ...

    def mrp_step(
        self,
        input_ids: Tensor,
        hidden_states: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        cache: Cache | None = None,
    ) -> Tensor:
        """One lookahead step: from ids *after* a reveal and hidden states from *before* it to those after it."""
        ...

    def project(self, hidden_states: Tensor) -> Tensor:
        """Logits of hidden states."""
        ...
