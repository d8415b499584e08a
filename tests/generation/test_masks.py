"""Masks and positions against the rule, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrp_hf.generation.masks_mrp import CLEAN, PADDING, additive, block_causal_visibility, pack_candidates

TOKENS = st.tuples(st.integers(-1, 3), st.integers(0, 3)).map(lambda t: (PADDING, PADDING) if t[0] == PADDING else t)


def sees(query, key):
    """The rule, for (copy, block) of two tokens."""
    (query_copy, query_block), (key_copy, key_block) = query, key
    if query_copy == PADDING or key_copy == PADDING:
        return query_copy == key_copy
    return (key_copy == CLEAN and key_block < query_block) or (key_copy == query_copy and key_block == query_block)


def split(rows):
    pairs = torch.tensor(rows)
    return pairs[..., 0], pairs[..., 1]


@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(TOKENS, min_size=5, max_size=5), min_size=n, max_size=n)))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_visibility(rows):
    found = block_causal_visibility(*split(rows))
    for row, tokens in enumerate(rows):
        for i, query in enumerate(tokens):
            for j, key in enumerate(tokens):
                assert found[row, i, j] == sees(query, key)
            assert found[row, i, i]


@given(st.lists(TOKENS, min_size=1, max_size=4), st.lists(TOKENS, min_size=1, max_size=7))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_visibility_of_other_keys(queries, keys):
    found = block_causal_visibility(*split([queries]), *split([keys]))
    assert found.tolist() == [[[sees(query, key) for key in keys] for query in queries]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_additive(dtype):
    visible = torch.tensor([[[True, False], [True, True]]])
    mask = additive(visible, dtype)
    assert mask.dtype == dtype
    assert mask.shape == (1, 1, 2, 2)
    assert mask.tolist() == [[[[0.0, torch.finfo(dtype).min], [0.0, 0.0]]]]
    assert visible.tolist() == [[[True, False], [True, True]]]


@st.composite
def packings(draw):
    block_length = draw(st.integers(1, 4))
    rows, candidates = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cached, riding, valid = [], [], []
    for _ in range(rows):
        cached.append(draw(st.integers(0, 3)))
        riding.append(draw(st.integers(0, 2)))
        valid.append([draw(st.booleans()) for _ in range(candidates)])
    return block_length, cached, riding, valid


@given(packings())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_packing(packing):
    """Each query against each key column: what the columns hold is simulated as a cache would hold it."""
    block_length, cached, riding, valid = packing
    starts = [(done + more) * block_length for done, more in zip(cached, riding, strict=True)]
    found = pack_candidates(
        torch.tensor(cached) * block_length,
        torch.tensor(starts),
        torch.tensor([[start + i for i in range(block_length)] for start in starts]),
        torch.tensor(valid),
        torch.float32,
    )
    width = max(riding) * block_length
    candidates = len(valid[0])
    queries = width + candidates * block_length
    longest = max(cached) * block_length
    assert found.clean_lengths.tolist() == [more * block_length for more in riding]
    assert found.clean_columns.shape == (len(cached), width)
    assert found.attention_mask.shape == (len(cached), 1, queries, longest + queries)
    for row, (done, more) in enumerate(zip(cached, riding, strict=True)):
        tokens, positions = [], []
        for column in range(width):
            position = done * block_length + column
            real = column < more * block_length
            tokens.append((CLEAN, position // block_length) if real else (PADDING, PADDING))
            positions.append(position)
            if real:
                assert found.clean_columns[row, column] == position
        for candidate in range(candidates):
            for i in range(block_length):
                real = valid[row][candidate]
                tokens.append((1 + candidate, done + more) if real else (PADDING, PADDING))
                positions.append(starts[row] + i)
        real_queries = [query for query, token in enumerate(tokens) if token[0] != PADDING]
        for query in real_queries:
            assert found.position_ids[row, query] == positions[query]
        columns = [(CLEAN, position // block_length) for position in range(done * block_length)] + tokens
        columns += [(PADDING, PADDING)] * (longest + queries - len(columns))
        for query, token in enumerate(tokens):
            expected = [0.0 if sees(token, key) else torch.finfo(torch.float32).min for key in columns]
            assert found.attention_mask[row, 0, query].tolist() == expected
            assert 0.0 in expected
