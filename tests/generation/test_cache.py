"""The block cache: where keys and values are written, kept and forgotten."""

import torch

from mrp_hf.generation.cache_mrp import BlockCache


def keys_of(numbers):
    """Keys (rows, 1 head, columns, 2) that hold the given numbers (rows, columns)."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None, :, None].expand(-1, -1, -1, 2).contiguous()


def write(cache, numbers, layer=0):
    """Write keys, with values ten times as large; returns the numbers that attention would read."""
    keys, values = cache.update(keys_of(numbers), 10 * keys_of(numbers), layer)
    assert torch.equal(values, 10 * keys)
    assert torch.equal(keys[..., 0], keys[..., 1])
    return keys[:, 0, :, 0].tolist()


def cache_of(rows, capacity, layers=1):
    return BlockCache(layers, rows, capacity, torch.device("cpu"))


def test_rows_at_different_offsets():
    cache = cache_of(rows=3, capacity=8)
    assert write(cache, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    cache.commit(torch.tensor([3, 1, 0]))
    assert cache.committed.tolist() == [3, 1, 0]
    # Each row writes behind its own length; all read up to the longest row's end.
    assert write(cache, [[10, 11], [12, 13], [14, 15]]) == [[1, 2, 3, 10, 11], [4, 12, 13, 0, 0], [14, 15, 9, 0, 0]]


def test_what_is_not_committed_is_overwritten():
    cache = cache_of(rows=2, capacity=8)
    write(cache, [[1, 2], [3, 4]])
    cache.commit(torch.tensor([2, 2]))
    write(cache, [[5, 6, 7], [8, 9, 10]])  # rejected
    assert write(cache, [[11], [12]]) == [[1, 2, 11], [3, 4, 12]]
    cache.commit(torch.tensor([1, 0]))
    assert write(cache, [[13, 14], [15, 16]]) == [[1, 2, 11, 13, 14], [3, 4, 15, 16, 10]]
    assert cache.get_seq_length() == 3


def test_keep_moves_a_candidate_to_its_place():
    cache = cache_of(rows=3, capacity=12, layers=2)
    for layer in range(2):
        write(cache, [[1, 2], [3, 4], [5, 6]], layer)
    cache.commit(torch.tensor([2, 1, 2]))
    for layer in range(2):
        shift = 100 * layer
        candidates = [
            [n + shift for n in row] for row in ([10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25], [30] * 6)
        ]
        write(cache, candidates, layer)
    # Row 0 keeps its second candidate of two tokens, row 1 its third, row 2 none.
    cache.keep(torch.tensor([2, 4]), 2, torch.tensor([0, 1]))
    assert cache.committed.tolist() == [4, 3, 2]
    for layer in range(2):
        shift = 100 * layer
        found = write(cache, [[50], [51], [52]], layer)
        assert found[0] == [1, 2, 12 + shift, 13 + shift, 50]
        assert found[1][:4] == [3, 24 + shift, 25 + shift, 51]
        assert found[2][:3] == [5, 6, 52]


def test_keep_of_overlapping_columns():
    cache = cache_of(rows=1, capacity=8)
    write(cache, [[1, 2, 3, 4, 5]])
    cache.keep(torch.tensor([1]), 3, torch.tensor([0]))
    assert write(cache, [[9]]) == [[2, 3, 4, 9]]


def test_forgotten_rows_write_at_the_front():
    cache = cache_of(rows=2, capacity=6)
    write(cache, [[1, 2, 3, 4], [5, 6, 7, 8]])
    cache.commit(torch.tensor([4, 1]))
    cache.forget(torch.tensor([True, False]))
    assert cache.committed.tolist() == [0, 1]
    assert write(cache, [[11, 12, 13], [14, 15, 16]]) == [[11, 12, 13, 4], [5, 14, 15, 16]]


def test_sizes_and_contents_before_anything_is_written():
    cache = cache_of(rows=2, capacity=6, layers=3)
    assert len(cache.layers) == 3
    assert cache.get_seq_length() == 0
    assert cache.layers[0].get_max_length() == 6
    assert cache.layers[0].get_mask_sizes(4) == (4, 0)
    keys, values = cache.update(torch.ones(2, 3, 1, 5), torch.full((2, 3, 1, 5), 2.0), 1)
    assert keys.shape == values.shape == (2, 3, 1, 5)
    assert keys.dtype == torch.float32
    store = cache.layers[1]
    assert store.keys.shape == (2, 3, 6, 5)
    assert not store.keys[:, :, 1:].any()  # zeros, never uninitialised memory
    assert not store.values[:, :, 1:].any()
    assert cache.layers[0].keys is None


def test_storage_is_written_in_place():
    cache = cache_of(rows=1, capacity=6)
    write(cache, [[1, 2]])
    storage = cache.layers[0].keys.data_ptr()
    cache.commit(torch.tensor([2]))
    write(cache, [[3, 4]])
    cache.keep(torch.tensor([0]), 2, torch.tensor([0]))
    assert cache.layers[0].keys.data_ptr() == storage
