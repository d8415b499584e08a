"""How a backbone's class is called: decoders, masked language models, and classes of unknown make."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    Cache,
    PreTrainedConfig,
    PreTrainedModel,
)


@dataclass(frozen=True)
class Architecture:
    """A kind of backbone class.

    Args:
        auto_class: the Auto class that builds and loads it.
        native: whether transformers implements it; otherwise its own code does, and nothing is known of its inside.
        caches: whether it takes a cache.
        serves_as_head: whether its decoder layers can be those of a head.
        before_lm_head: dotted name of the module between its last hidden state and the LM head's linear layer.
    """

    auto_class: Any
    native: bool = True
    caches: bool = False
    serves_as_head: bool = False
    before_lm_head: str | None = None

    def hidden_states(
        self,
        backbone: PreTrainedModel,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        cache: Cache | None,
    ) -> Tensor:
        """Input of the LM head's linear layer (rows, queries, hidden); arguments as in `backbone_hidden_states`."""
        if not self.native:
            output = backbone(
                input_ids=input_ids,
                position_ids=position_ids,
                attention_mask=attention_mask,
                output_hidden_states=True,
            )
            return output.hidden_states[-1]
        with_cache: dict[str, Any] = {"cache": cache, "use_cache": cache is not None} if self.caches else {}
        hidden = backbone.base_model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=_masks_by_layer_type(backbone.config, attention_mask, position_ids),
            **with_cache,
        ).last_hidden_state
        if self.before_lm_head is not None:
            hidden = reduce(getattr, self.before_lm_head.split("."), backbone)(hidden)
        return hidden


_DECODER = Architecture(AutoModelForCausalLM, caches=True, serves_as_head=True)
_MIXTURE_OF_EXPERTS = Architecture(AutoModelForCausalLM, caches=True)

# By native `model_type`.
ARCHITECTURES = {
    "llama": _DECODER,
    "qwen2": _DECODER,
    "qwen3": _DECODER,
    "qwen3_moe": _MIXTURE_OF_EXPERTS,
    "llada2_moe": _MIXTURE_OF_EXPERTS,
    "bert": Architecture(AutoModelForMaskedLM, before_lm_head="cls.predictions.transform"),
    "modernbert": Architecture(AutoModelForMaskedLM, before_lm_head="head"),
}
OWN_CODE = Architecture(AutoModel, native=False)


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """How the backbone of `config` is called; its own code is assumed where the table does not know its type."""
    return ARCHITECTURES.get(config.model_type, OWN_CODE)


def _masks_by_layer_type(
    config: PreTrainedConfig, attention_mask: Tensor, position_ids: Tensor
) -> Tensor | dict[str, Tensor]:
    """The mask as it is, or one for each kind of layer where some attend through a sliding window (ModernBERT)."""
    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return attention_mask
    distance = (position_ids[:, None, :, None] - position_ids[:, None, None, :]).abs()
    outside = distance > config.sliding_window
    return {
        "full_attention": attention_mask,
        "sliding_attention": attention_mask.masked_fill(outside, torch.finfo(attention_mask.dtype).min),
    }
