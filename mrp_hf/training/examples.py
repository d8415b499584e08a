"""The dataset as the trainer reads it: the columns that it needs, and each item's own number."""

from typing import Any

import torch
from torch.utils.data import Dataset


class IndexedDataset(Dataset[dict[str, Any]]):
    """A map-style dataset's `input_ids` and `labels` with `sample_index`, which keys the noise.

    Args:
        dataset: anything with a length whose items are mappings.
        vocab_size (`int`): ids must lie below it.
        max_length (`int`): items may not be longer.
        name (`str`): what errors call the dataset.

    Raises:
        ValueError: for an empty dataset, and on access to an item that the model cannot read, naming the item.
    """

    def __init__(self, dataset: Any, vocab_size: int, max_length: int, name: str):
        if len(dataset) == 0:
            raise ValueError(f"`{name}` is empty: pass at least one item with `input_ids` and `labels`.")
        self.dataset = dataset
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.name = name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        for column in ("input_ids", "labels"):
            if column not in item:
                raise ValueError(f"{self.name}[{index}] has no `{column}`, only {sorted(item)}: add that column.")
        ids = torch.as_tensor(item["input_ids"])
        if ids.numel() > self.max_length:
            raise ValueError(
                f"{self.name}[{index}] has {ids.numel()} tokens, the model takes {self.max_length} "
                "(`max_position_embeddings`): cut or split it."
            )
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise ValueError(
                f"{self.name}[{index}] has `input_ids` from {int(ids.min())} to {int(ids.max())}, outside the "
                f"model's vocabulary of {self.vocab_size}: tokenize with the backbone's own tokenizer."
            )
        return {"input_ids": item["input_ids"], "labels": item["labels"], "sample_index": index}
