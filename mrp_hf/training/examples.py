"""The dataset as the trainer reads it: the columns that it needs, each item's own number, and nothing unreadable."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from mrp_hf.training.collator import DataCollatorForMRP


class ReadableItems:
    """Checks items before the model meets them.

    Args:
        vocab_size (`int`): ids must lie below it.
        max_length (`int`): items may not be longer.
    """

    def __init__(self, vocab_size: int, max_length: int):
        self.vocab_size = vocab_size
        self.max_length = max_length

    def check(self, item: Mapping[str, Any], where: str) -> None:
        """Raise a `ValueError` that names `where` the item stands."""
        for column in ("input_ids", "labels"):
            if column not in item:
                raise ValueError(f"{where} has no `{column}`, only {sorted(item)}: add that column.")
        ids = torch.as_tensor(item["input_ids"])
        if ids.numel() > self.max_length:
            raise ValueError(
                f"{where} has {ids.numel()} tokens, the model takes {self.max_length} (`max_position_embeddings`): cut "
                "or split it."
            )
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise ValueError(
                f"{where} has `input_ids` from {int(ids.min())} to {int(ids.max())}, outside the model's vocabulary of "
                f"{self.vocab_size}: tokenize with the backbone's own tokenizer."
            )


class IndexedDataset(Dataset[dict[str, Any]]):
    """A map-style dataset's `input_ids` and `labels` with `sample_index`, which keys the noise.

    Args:
        dataset: anything with a length whose items are mappings.
        readable (`ReadableItems`): what items are checked by.
        name (`str`): what errors call the dataset.

    Raises:
        ValueError: for an empty dataset, and on access to an item that the model cannot read, naming the item.
    """

    def __init__(self, dataset: Any, readable: ReadableItems, name: str):
        if isinstance(dataset, Mapping) or not hasattr(dataset, "__getitem__"):
            raise ValueError(f"`{name}` is a {type(dataset).__name__}: pass a dataset or a list of items.")
        if len(dataset) == 0:
            raise ValueError(f"`{name}` is empty: pass at least one item with `input_ids` and `labels`.")
        self.dataset = dataset
        self.readable = readable
        self.name = name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        self.readable.check(item, f"{self.name}[{index}]")
        return {"input_ids": item["input_ids"], "labels": item["labels"], "sample_index": index}


class CheckedCollator:
    """A collator whose items come from a stream, where nothing has checked them before."""

    def __init__(self, collator: DataCollatorForMRP, readable: ReadableItems):
        self.collator = collator
        self.readable = readable

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        for number, item in enumerate(features):
            self.readable.check(item, f"item {number} of the batch (sample {item.get('sample_index')})")
        return self.collator(features)
