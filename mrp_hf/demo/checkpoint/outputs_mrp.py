"""What `MRPForDiffusionLM` returns."""

from dataclasses import dataclass

from torch import Tensor
from transformers.utils.generic import ModelOutput


@dataclass
class MRPOutput(ModelOutput):
    """What `MRPForDiffusionLM` returns.

    Args:
        logits (`Tensor` of shape (batch, length, vocabulary)): the backbone's logits, A. Those at i are for token i,
            also where the backbone gives them at i - 1 (then token 0 has its own, which mean nothing).
        last_hidden_state (`Tensor` of shape (batch, length, hidden)): input of the LM head that `logits` come from, h.
        residual_logits (`Tensor` of shape (batch, length, vocabulary), *optional*):
            LM head applied to what the head predicts, C; corrected logits are A + C (C alone for "direct" heads).
        mrp_hidden_state (`Tensor` of shape (batch, length, hidden), *optional*):
            The accumulator: what the next lookahead step reads as hidden state.
    """

    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    residual_logits: Tensor | None = None
    mrp_hidden_state: Tensor | None = None
