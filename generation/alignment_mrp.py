"""Shifted logits, in one place: with Dream and Fast-dLLM v2, token i is predicted by the hidden state at i - 1."""

import torch
from torch import Tensor


def align(hidden: Tensor, first: Tensor | None = None) -> Tensor:
    """What predicts the token of each place, of the shape of `hidden`.

    Args:
        hidden (`Tensor` of shape (..., places, hidden)): hidden states as the backbone gives them.
        first (`Tensor` of shape (..., 1, hidden), *optional*): what predicts the token of the first place. By default
            its own hidden state: before a text's first token nothing stands, so that what is predicted there has no
            meaning (the convention of Dream's own code).
    """
    first = hidden[..., :1, :] if first is None else first
    return torch.cat([first, hidden[..., :-1, :]], dim=-2)
