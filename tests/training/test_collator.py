"""Batches, and items that are refused."""

import pytest
import torch

from mrp_hf.training import DataCollatorForMRP
from mrp_hf.training.examples import CheckedCollator, IndexedDataset, ReadableItems

GOOD = {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, 7, 8, 9]}


def test_pads_on_the_right_to_whole_blocks():
    short = {"input_ids": torch.tensor([1, 2]), "labels": torch.tensor([-100, 2])}
    batch = DataCollatorForMRP(0, 4)([GOOD | {"sample_index": 3}, short | {"sample_index": 9}])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, 7, 8, 9, -100, -100, -100], [-100, 2] + [-100] * 6]
    assert batch["lengths"].tolist() == [5, 2]
    assert batch["sample_index"].tolist() == [3, 9]
    assert "sample_index" not in DataCollatorForMRP(0, 4)([GOOD])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [-100, 6, 7]}, r"item 1 of the batch \(sample 4\): `labels` has shape \(3,\), `input_ids` \(5,\)"),
        ({"labels": [-100] * 5}, "nothing to learn"),
        ({"input_ids": [], "labels": []}, "one row of tokens"),
        ({"input_ids": [[5, 6]], "labels": [[5, 6]]}, "one row of tokens"),
        ({"labels": [-100, 7, 8, 9, 1]}, "unshifted"),
        ({"input_ids": [1.5, 6.0], "labels": [-100, 6]}, "whole numbers, got floats"),
    ],
)
def test_refuses_an_item_by_name(change, message):
    collator = DataCollatorForMRP(0, 4)
    with pytest.raises(ValueError, match=message):
        collator([GOOD, GOOD | change | {"sample_index": 4}])


def test_refuses_missing_columns_and_empty_batches():
    with pytest.raises(ValueError, match="has no `labels`, only"):
        DataCollatorForMRP(0, 4)([{"input_ids": [1]}])
    with pytest.raises(ValueError, match="empty"):
        DataCollatorForMRP(0, 4)([])


def test_without_a_block_length_rows_are_as_wide_as_the_longest():
    assert DataCollatorForMRP(0)([GOOD, GOOD])["input_ids"].shape == (2, len(GOOD["input_ids"]))


def test_refuses_wrong_settings():
    with pytest.raises(ValueError, match="`block_length` must be at least 1, got 0"):
        DataCollatorForMRP(0, 0)
    for pad_token_id in (-1, None):
        with pytest.raises(ValueError, match=f"`pad_token_id` must be an id of the vocabulary, got {pad_token_id}"):
            DataCollatorForMRP(pad_token_id, 4)


def test_items_of_a_stream_are_checked_where_they_are_batched():
    collator = CheckedCollator(DataCollatorForMRP(0, 4), ReadableItems(vocab_size=10, max_length=5))
    assert collator([GOOD])["input_ids"].shape == (1, 8)
    for change, message in (
        ({"input_ids": [1, 10], "labels": [-100, 10]}, r"item 1 of the batch .* outside the model's vocabulary of 10"),
        ({"input_ids": [1] * 6, "labels": [1] * 6}, "has 6 tokens, the model takes 5"),
    ):
        with pytest.raises(ValueError, match=message):
            collator([GOOD, change])


@pytest.mark.parametrize("dataset", [{"input_ids": [[1]]}, 3])
def test_what_is_no_dataset(dataset):
    with pytest.raises(ValueError, match=r"`train_dataset` is a .*: pass a dataset or a list of items"):
        IndexedDataset(dataset, ReadableItems(vocab_size=10, max_length=5), name="train_dataset")


def test_indexed_dataset_gives_needed_columns_and_the_number():
    dataset = IndexedDataset(
        [GOOD | {"text": "…"}] * 3, ReadableItems(vocab_size=10, max_length=5), name="train_dataset"
    )
    assert len(dataset) == 3
    assert dataset[2] == GOOD | {"sample_index": 2}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"input_ids": [1, 10], "labels": [1, 10]},
            r"train_dataset\[1\] has `input_ids` from 1 to 10, outside .* of 10",
        ),
        ({"input_ids": [-1, 3], "labels": [-1, 3]}, "from -1 to 3"),
        ({"input_ids": [1] * 6, "labels": [1] * 6}, r"train_dataset\[1\] has 6 tokens, the model takes 5"),
        ({"input_ids": [1]}, r"train_dataset\[1\] has no `labels`"),
    ],
)
def test_indexed_dataset_refuses_what_the_model_cannot_read(item, message):
    dataset = IndexedDataset([GOOD, item], ReadableItems(vocab_size=10, max_length=5), name="train_dataset")
    with pytest.raises(ValueError, match=message):
        dataset[1]
