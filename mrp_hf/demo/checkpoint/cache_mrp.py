"""The block cache: keys and values of each row's finished blocks, preallocated and written in place.

A forward writes its keys and values behind each row's committed length. They stay there only if they are committed;
otherwise the next forward overwrites them, so dropping rejected candidates costs nothing.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class BlockCacheLayer(CacheLayerMixin):
    """One layer's keys and values, (rows, heads, capacity, head size); `owner` says where each row writes."""

    is_croppable = False

    def __init__(self, owner: "BlockCache"):
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device, self.dtype = key_states.device, key_states.dtype
        rows, heads, _, _ = key_states.shape
        # Zeros, not uninitialised memory: an unseen NaN times an attention weight of zero would still be NaN.
        self.keys = key_states.new_zeros(rows, heads, self.owner.capacity, key_states.shape[-1])
        self.values = value_states.new_zeros(rows, heads, self.owner.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self._stores()
        columns = self.owner.write_columns(key_states.shape[-2])
        for store, new in ((keys, key_states), (values, value_states)):
            store.scatter_(2, columns[:, None, :, None].expand_as(new), new)
        end = self.owner.visible_length(key_states.shape[-2])
        return keys[:, :, :end], values[:, :, :end]

    def move(self, source: Tensor, target: Tensor, rows: Tensor) -> None:
        """Copy columns `source` to columns `target`, both (selected rows, columns), within the given rows."""
        for store in self._stores():
            store[rows[:, None], :, target] = store[rows[:, None], :, source]

    def _stores(self) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.visible_length(query_length), 0

    def get_seq_length(self) -> int:
        return self.owner.longest

    def get_max_length(self) -> int:
        return self.owner.capacity


class BlockCache(Cache):
    """Keys and values of one stack of decoder layers during one decode.

    Args:
        num_layers (`int`): decoder layers of the stack.
        rows (`int`): rows of the batch.
        capacity (`int`): columns to allocate: the canvas plus what one forward may write behind it.
        device (`torch.device`): where the committed lengths are kept.
    """

    def __init__(self, num_layers: int, rows: int, capacity: int, device: torch.device):
        super().__init__(layers=[BlockCacheLayer(self) for _ in range(num_layers)])
        self.capacity = capacity
        self.committed = torch.zeros(rows, dtype=torch.long, device=device)
        self.longest = 0

    def write_columns(self, queries: int) -> Tensor:
        """The columns (rows, queries) that a forward with so many queries writes."""
        return self.committed[:, None] + torch.arange(queries, device=self.committed.device)

    def visible_length(self, queries: int) -> int:
        """The columns that such a forward's attention reads."""
        return self.longest + queries

    def commit(self, lengths: Tensor) -> None:
        """Keep each row's first `lengths` (rows,) columns behind what is committed."""
        self.committed = self.committed + lengths
        self.longest = int(self.committed.max())

    def forget(self, rows: Tensor) -> None:
        """Drop all that is committed of the given rows (boolean), so that they write and read at the front."""
        self.committed = self.committed.masked_fill(rows, 0)
        self.longest = int(self.committed.max())

    def keep(self, offsets: Tensor, count: int, rows: Tensor) -> None:
        """Commit `count` columns found `offsets` columns behind the committed length, for the given rows (indices)."""
        target = self.committed[rows, None] + torch.arange(count, device=rows.device)
        source = target + offsets[:, None]
        for layer in self.layers:
            assert isinstance(layer, BlockCacheLayer)
            layer.move(source, target, rows)
        lengths = torch.zeros_like(self.committed)
        lengths[rows] = count
        self.commit(lengths)
