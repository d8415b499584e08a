"""Tiny random checkpoints of every backbone family, written as their upstream projects write them.

The weights are drawn in a native class and renamed by a table of this file's own, so that the library's table is tested
against another one.
"""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY, EOS, PAD, MASK = 24, 21, 22, 23

# Family: native model class, upstream config fields. Each maker draws widths, heads and groups of its own.
Made = tuple[PreTrainedModel, dict[str, Any]]


def _widths(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([2, 4])
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": heads * 8,
        "intermediate_size": draw.choice([24, 40]),
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([1, heads // 2, heads]),
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": draw.choice([10000.0, 1000000.0]),
        "tie_word_embeddings": draw.random() < 0.5,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def _own_names(config_class: Any, model_class: Any, model_type: str, **extra: Any) -> Callable[[random.Random], Made]:
    """A family whose tensors and config fields are named as the native ones are."""

    def make(draw: random.Random) -> Made:
        fields = _widths(draw) | extra
        if config_class is not Qwen2Config and config_class is not LlamaConfig:
            fields["head_dim"] = draw.choice([8, 16])
        fields.pop("block_size", None)
        fields.pop("bd_size", None)
        model = model_class(config_class(**fields, initializer_range=0.5))
        upstream = {"auto_map": {"AutoModel": "modeling_x.X"}, "torch_dtype": "float32"}
        return model, fields | extra | upstream | {"model_type": model_type, "mask_token_id": MASK}

    return make


def _llada(draw: random.Random) -> Made:
    fields = _widths(draw)
    model = LlamaForCausalLM(LlamaConfig(**fields, initializer_range=0.5))
    return model, {
        "model_type": "llada",
        "d_model": fields["hidden_size"],
        "n_heads": fields["num_attention_heads"],
        "n_kv_heads": fields["num_key_value_heads"],
        "n_layers": fields["num_hidden_layers"],
        "mlp_hidden_size": fields["intermediate_size"],
        "embedding_size": VOCABULARY,
        "vocab_size": VOCABULARY - 4,  # fewer than the rows of the embedding, as published
        "max_sequence_length": 128,
        "weight_tying": fields["tie_word_embeddings"],
        "scale_logits": draw.random() < 0.5,
        "activation_type": "silu",
        "block_type": "llama",
        "layer_norm_type": "rms",
        "rms_norm_eps": 1e-6,
        "rope": True,
        "rope_theta": fields["rope_theta"],
        "alibi": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "mask_token_id": MASK,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "use_cache": False,
        "tie_word_embeddings": True,  # as published, and without effect there
    }


def _masked_lm(config_class: Any, model_class: Any, **extra: Any) -> Callable[[random.Random], Made]:
    def make(draw: random.Random) -> Made:
        fields = _widths(draw)
        for name in ("num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "eos_token_id"):
            fields.pop(name)
        fields |= {"hidden_dropout_prob": 0.0} if config_class is BertConfig else {}
        config = config_class(**fields, **extra, initializer_range=0.5)
        model = model_class(config)
        with torch.no_grad():  # biases are zero at the start
            model.get_output_embeddings().bias.normal_()
        return model, config.to_diff_dict() | {"mask_token_id": MASK, "eos_token_id": EOS}

    return make


MAKERS: dict[str, Callable[[random.Random], Made]] = {
    "sdar": _own_names(Qwen3Config, Qwen3ForCausalLM, "sdar", block_size=4),
    "sdar_moe": _own_names(
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        "sdar_moe",
        block_size=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=12,
        norm_topk_prob=True,
    ),
    "llada": _llada,
    "Dream": _own_names(Qwen2Config, Qwen2ForCausalLM, "Dream"),
    "Fast_dLLM_Qwen": _own_names(Qwen2Config, Qwen2ForCausalLM, "Fast_dLLM_Qwen", bd_size=4),
    "a2d-qwen3-mdlm": _own_names(Qwen3Config, Qwen3ForCausalLM, "a2d-qwen3"),
    "a2d-qwen3-bd3lm": _own_names(Qwen3Config, Qwen3ForCausalLM, "a2d-qwen3", block_length=4),
    "a2d-qwen2-bd3lm": _own_names(Qwen2Config, Qwen2ForCausalLM, "a2d-qwen2", block_length=4),
    "a2d-llama-mdlm": _own_names(LlamaConfig, LlamaForCausalLM, "a2d-llama"),
    "bert": _masked_lm(BertConfig, BertForMaskedLM),
    "modernbert": _masked_lm(
        ModernBertConfig, ModernBertForMaskedLM, local_attention=6, global_attn_every_n_layers=2, decoder_bias=True
    ),
}

_LLADA_NAMES = {
    "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.o_proj": "attn_out",
    "self_attn.": "",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}


def _llada_name(name: str) -> str:
    for native, upstream in _LLADA_NAMES.items():
        name = name.replace(native, upstream)
    return re.sub(r"^model\.layers\.", "model.transformer.blocks.", name)


def exact_dtype(family: str) -> torch.dtype:
    """The dtype for exact comparisons: torch multiplies experts' matrices in float32 at most."""
    return torch.float32 if family == "sdar_moe" else torch.float64


def make_native(family: str, seed: int) -> Made:
    """A random model in its native class and the upstream config fields of the same, drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, fields = MAKERS[family](random.Random(f"{family} {seed}"))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms and biases start out all alike
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model.eval(), fields


def write_checkpoint(family: str, seed: int, parent: Path) -> Path:
    """A folder with the checkpoint of `make_native`, in the upstream project's format."""
    model, fields = make_native(family, seed)
    folder = parent / f"{family}-{seed}"
    model.save_pretrained(folder)
    if family == "llada":
        tied = model.config.tie_word_embeddings
        tensors = {
            _llada_name(name): tensor.clone()
            for name, tensor in model.state_dict().items()
            if not (tied and name == "lm_head.weight")
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def write_own_code(folder: Path, **fields: Any) -> Path:
    """A checkpoint of a family that is in no table and brings code of its own."""
    source = Path(__file__).parent / "modeling" / "own_code"
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.py"):
        shutil.copy(file, folder)
    auto_map = {
        "AutoConfig": "configuration_strange.StrangeConfig",
        "AutoModel": "modeling_strange.StrangeModel",
        "AutoModelForCausalLM": "modeling_strange.StrangeForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "strange", "auto_map": auto_map} | fields))
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.5)
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    return folder
