"""Every attention mask and every position is built here, from one rule.

Each token carries a *copy* and a *block*. Copy 0 is the clean text; every other copy holds some denoising state of some
blocks: a noisy training copy, the block being decoded, a speculative candidate. Copies with other numbers never see
each other. The rule, for block-causal backbones (SDAR, arXiv 2510.06303; block diffusion, arXiv 2503.09573):

    a token sees the clean copy's earlier blocks, and its own block in its own copy.

Several documents in one row need no further rule: number their blocks consecutively and let `first_block` say where a
token's own document starts.
"""

import torch
from torch import Tensor

CLEAN = 0
PADDING = -1


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean (batch, queries, keys) mask into an additive (batch, 1, queries, keys) mask of `dtype`.

    Boolean masks are not used because eager attention *adds* whatever mask it is given.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)


def block_causal_visibility(
    query_copy: Tensor,
    query_block: Tensor,
    key_copy: Tensor | None = None,
    key_block: Tensor | None = None,
) -> Tensor:
    """Which keys each query sees, as a boolean tensor (batch, queries, keys).

    Args:
        query_copy, query_block (`Tensor` of shape (batch, queries)): copy and block number of each query.
        key_copy, key_block (`Tensor` of shape (batch, keys), *optional*): the same of the keys; the queries' own by default.

    Padding has copy and block `PADDING`: no real token sees it, and it sees padding alone, itself at least, so that
    no softmax row is empty.
    """
    key_copy = query_copy if key_copy is None else key_copy
    key_block = query_block if key_block is None else key_block
    query_copy, query_block = query_copy.unsqueeze(-1), query_block.unsqueeze(-1)
    key_copy, key_block = key_copy.unsqueeze(-2), key_block.unsqueeze(-2)
    earlier_clean = (key_copy == CLEAN) & (key_block < query_block)
    own_block = (key_copy == query_copy) & (key_block == query_block)
    return earlier_clean | own_block
