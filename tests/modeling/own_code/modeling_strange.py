"""A backbone family that no table knows: no cache, attention with a bias by distance instead of rotary positions."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from .configuration_strange import StrangeConfig


class StrangeModel(PreTrainedModel):
    """Without the LM head, as `AutoModel` of SDAR is."""

    config_class = StrangeConfig

    def __init__(self, config):
        super().__init__(config)
        size = config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, size)
        self.layers = nn.ModuleList(nn.Linear(size, 2 * size) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(size)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, attention_mask, position_ids, output_hidden_states=False):
        states = self.embed(input_ids)
        every = [states]
        near = -(position_ids[:, :, None] - position_ids[:, None, :]).abs().to(states.dtype) / 3
        for layer in self.layers:
            query, value = layer(states).chunk(2, dim=-1)
            scores = query @ query.mT / query.shape[-1] ** 0.5 + near + attention_mask[:, 0]
            states = states + scores.softmax(-1) @ torch.tanh(value)
            every.append(states)
        states = self.norm(states)
        every[-1] = states
        return BaseModelOutput(states, tuple(every) if output_hidden_states else None)


class StrangeForCausalLM(PreTrainedModel):
    config_class = StrangeConfig

    def __init__(self, config):
        super().__init__(config)
        self.transformer = StrangeModel(config)
        self.out = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.transformer.embed

    def get_output_embeddings(self):
        return self.out

    def forward(self, input_ids, attention_mask, position_ids, output_hidden_states=False):
        output = self.transformer(input_ids, attention_mask, position_ids, output_hidden_states)
        return CausalLMOutput(logits=self.out(output.last_hidden_state), hidden_states=output.hidden_states)
