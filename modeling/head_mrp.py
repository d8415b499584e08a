"""The residual head: a small transformer that reads what was just revealed and predicts how the hidden state moves."""

import copy

import torch
from torch import Tensor, nn
from transformers import AutoModel, Cache, PreTrainedConfig, PreTrainedModel, Qwen3Config

from .architectures_mrp import architecture_of


class MRPHead(PreTrainedModel):
    """``norm(layers(eh_proj([enorm(embedding), hnorm(hidden)])))`` (arXiv 2605.18817).

    Layers, rotary positions and norms are the backbone architecture's own, with its widths, or Qwen3's where the
    backbone is no dense decoder of transformers. Tensor names are those of the published checkpoints: `enorm`, `hnorm`,
    `eh_proj`, `layers.*`, `norm`.

    Args:
        config (`PreTrainedConfig`): the head's config, from `MRPHead.config_for`.

    Linear layers start from a normal distribution of standard deviation `config.initializer_range`, norms from 1: the
    backbone architecture's own initialisation. `start_from` begins with layers of the backbone instead.
    """

    # The head's name in the model: its tensors load with this prefix or without. (With an empty one, the default,
    # transformers takes `enorm` for `norm`.)
    base_model_prefix = "mrp_head"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        # The native stack is taken apart rather than imported by name, so that any architecture serves as a row of the
        # backbone table. Only its embedding (of one token, see `config_for`) is dropped.
        stack = AutoModel.from_config(config)
        self.enorm = copy.deepcopy(stack.norm)
        self.hnorm = copy.deepcopy(stack.norm)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = stack.layers
        self.norm = stack.norm
        self.rotary_emb = stack.rotary_emb
        self._no_split_modules = stack._no_split_modules
        self.post_init()

    @torch.no_grad()
    def start_from(self, layers: nn.ModuleList) -> None:
        """Copy the last of the backbone's `layers`, and let `eh_proj` begin as the sum of its two inputs.

        So attention reads the block from the first step on; from a random start the loss of a small head stays on the
        plateau of C = 0 for long.

        Raises:
            ValueError: if the backbone has fewer layers than the head.
        """
        if len(layers) < len(self.layers):
            raise ValueError(
                f"`num_mrp_layers` is {len(self.layers)}, but the backbone has {len(layers)} layers to copy: "
                'pass fewer, or `head_initialization="normal"`.'
            )
        for own, copied in zip(self.layers, list(layers)[-len(self.layers) :], strict=True):
            own.load_state_dict(copied.state_dict())
        identity = torch.eye(self.config.hidden_size)
        self.eh_proj.weight.copy_(torch.cat([identity, identity], dim=1))

    @staticmethod
    def config_for(
        backbone_config: PreTrainedConfig, num_layers: int, initializer_range: float, dtype: torch.dtype
    ) -> PreTrainedConfig:
        """The backbone's config with `num_layers` layers of full attention, another initialisation and no vocabulary.

        Full attention, because every mask is given explicitly.

        Raises:
            ValueError: if a backbone of unknown make does not say its widths.
        """
        if architecture_of(backbone_config).serves_as_head:
            config = copy.deepcopy(backbone_config)
            vars(config).pop("quantization_config", None)  # the head is not quantised with its backbone
        else:
            config = _qwen3_config(backbone_config)
        config.num_hidden_layers = num_layers
        config.layer_types = ["full_attention"] * num_layers
        config.initializer_range = initializer_range
        config.dtype = dtype
        config.vocab_size = 1
        config.pad_token_id = config.bos_token_id = config.eos_token_id = None
        return config

    def forward(
        self,
        inputs_embeds: Tensor,
        hidden_states: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        cache: Cache | None = None,
    ) -> Tensor:
        """Residual hidden state (rows, queries, hidden).

        Args:
            inputs_embeds (`Tensor` of shape (rows, queries, hidden)): embeddings of the ids *after* the reveal.
            hidden_states (`Tensor` of shape (rows, queries, hidden)): hidden states from *before* it.
            position_ids (`Tensor` of shape (rows, queries)): positions from each row's first real token.
            attention_mask (`Tensor` of shape (rows, 1, queries, keys)): additive mask of the model's dtype.
            cache (`Cache`, *optional*): the head's own cache; layers are numbered from 0.
        """
        states = self.eh_proj(torch.cat([self.enorm(inputs_embeds), self.hnorm(hidden_states)], dim=-1))
        position_embeddings = self.rotary_emb(states, position_ids)
        for layer in self.layers:
            states = layer(
                states,
                attention_mask=attention_mask,
                position_ids=position_ids,
                cache=cache,
                use_cache=cache is not None,
                position_embeddings=position_embeddings,
            )
        return self.norm(states)


def _qwen3_config(backbone_config: PreTrainedConfig) -> Qwen3Config:
    """A dense Qwen3 of the backbone's widths, for backbones whose own layers cannot be a head's."""
    widths = ("hidden_size", "intermediate_size", "num_attention_heads")
    missing = [name for name in widths if getattr(backbone_config, name, None) is None]
    if missing:
        raise ValueError(
            f"the config of backbone type {backbone_config.model_type!r} does not say {missing}, which its head needs: "
            "set them in its config.json, or pass `num_mrp_layers=0`."
        )
    hidden_size, intermediate_size, heads = (getattr(backbone_config, name) for name in widths)
    config = Qwen3Config(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_attention_heads=heads,
        num_key_value_heads=getattr(backbone_config, "num_key_value_heads", None) or heads,
        head_dim=getattr(backbone_config, "head_dim", None) or hidden_size // heads,
        max_position_embeddings=backbone_config.max_position_embeddings,
    )
    config._attn_implementation = backbone_config._attn_implementation
    return config
