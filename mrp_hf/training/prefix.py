"""A cache that is written once and read many times: the clean copy's keys and values, under every noisy copy."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class PrefixLayer(CacheLayerMixin):
    """One layer's prefix, (rows, heads, width, head size)."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = key_states, value_states
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The first call records, later ones put their own keys and values behind the recorded ones for one reading."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        assert self.keys is not None
        assert self.values is not None
        return torch.cat([self.keys, key_states], dim=2), torch.cat([self.values, value_states], dim=2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def get_max_length(self) -> int:
        return -1


class PrefixCache(Cache):
    """Keys and values of a stack's first pass, which every later pass sees in front of its own.

    Nothing is copied or detached when it is recorded: gradients of the later passes flow into the first one.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=PrefixLayer)
