"""From dataset items to a right-padded batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

IGNORED = -100  # label of tokens that are never noised: the prompt's


@dataclass
class DataCollatorForMRP:
    """Pads `input_ids` and `labels` on the right and says how long each row is.

    Args:
        pad_token_id (`int`): fills up rows; any id of the vocabulary does, because nothing ever sees it.
        block_length (`int`, *optional*): the width is rounded up to a multiple of it; `None` for a model without
            blocks.

    An item has `input_ids` and `labels`: -100 on the prompt, the input id on answer tokens. The batch has `input_ids`,
    `labels` (rows, width), `lengths` (rows,) and, where the items have one, `sample_index` (rows,).
    """

    pad_token_id: int
    block_length: int | None = None

    def __post_init__(self) -> None:
        if self.block_length is not None and (not isinstance(self.block_length, int) or self.block_length < 1):
            raise ValueError(f"`block_length` must be at least 1, got {self.block_length!r}: pass the model's.")
        if not isinstance(self.pad_token_id, int) or self.pad_token_id < 0:
            raise ValueError(f"`pad_token_id` must be an id of the vocabulary, got {self.pad_token_id!r}.")

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Raises `ValueError` for an item without tokens or answer, or whose labels do not belong to its ids."""
        if not features:
            raise ValueError("the batch is empty: pass at least one item.")
        rows = [self._tensors(item, number) for number, item in enumerate(features)]
        lengths = torch.tensor([len(ids) for ids, _ in rows])
        multiple = self.block_length or 1
        width = -(-int(lengths.max()) // multiple) * multiple
        batch = {
            "input_ids": torch.full((len(rows), width), self.pad_token_id),
            "labels": torch.full((len(rows), width), IGNORED),
            "lengths": lengths,
        }
        for row, (ids, labels) in enumerate(rows):
            batch["input_ids"][row, : len(ids)] = ids
            batch["labels"][row, : len(ids)] = labels
        if all("sample_index" in item for item in features):
            batch["sample_index"] = torch.tensor([int(item["sample_index"]) for item in features])
        return batch

    @staticmethod
    def _tensors(item: Mapping[str, Any], number: int) -> tuple[Tensor, Tensor]:
        where = f"item {number} of the batch"
        if "sample_index" in item:
            where += f" (sample {int(item['sample_index'])})"
        for name in ("input_ids", "labels"):
            if name not in item:
                raise ValueError(f"{where} has no `{name}`, only {sorted(item)}: add `input_ids` and `labels`.")
        ids, labels = (torch.as_tensor(item[name]) for name in ("input_ids", "labels"))
        if any(part.is_floating_point() and part.numel() > 0 for part in (ids, labels)):
            raise ValueError(f"{where}: `input_ids` and `labels` must be whole numbers, got floats.")
        ids, labels = ids.long(), labels.long()
        if ids.dim() != 1 or len(ids) == 0:
            raise ValueError(f"{where}: `input_ids` has shape {tuple(ids.shape)}: it must be one row of tokens.")
        if labels.shape != ids.shape:
            raise ValueError(
                f"{where}: `labels` has shape {tuple(labels.shape)}, `input_ids` {tuple(ids.shape)}: "
                "give every token a label, -100 on the prompt."
            )
        answer = labels != IGNORED
        if not answer.any():
            raise ValueError(
                f"{where}: `labels` are all {IGNORED}, so there is nothing to learn: "
                "set them to the input ids on the answer, or drop the item."
            )
        if not torch.equal(labels[answer], ids[answer]):
            raise ValueError(
                f"{where}: `labels` differ from `input_ids` on answer tokens: set them to the same ids, unshifted."
            )
        return ids, labels
