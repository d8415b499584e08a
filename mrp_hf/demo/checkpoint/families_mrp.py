"""The backbone table: one row a family of diffusion language models.

A row says what the family's weights are natively, and where the family says what diffusion decoding needs to know. Rows
are data: adding a family is adding one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

# Says how to find the upstream code or how it once attended: neither holds for the native class.
UPSTREAM_ONLY = ("auto_map", "architectures", "attn_implementation", "_attn_implementation", "_name_or_path")


@dataclass(frozen=True)
class BackboneFamily:
    """One row.

    Args:
        native_type: `model_type` of the transformers architecture that its weights are.
        attention_pattern, logit_shift, logit_scale: as in `MRPConfig`. `None` where checkpoints of the family differ.
        attention_by_name: parts of a repository's name that tell the attention pattern, where the row leaves it open.
        native_fields: native config field by upstream field, where the names differ.
        required: values that upstream fields must have for the native architecture to be the same function.
        tensor_names: native names by upstream names, as regular expressions (transformers' `key_mapping`).
        scaled_logits_field: config field that says whether logits are divided by the square root of the hidden size.
        mask_id_fields, block_length_fields: config fields that may hold them, the first one set counts.
        mask_tokens: text of its mask token, where the tokenizer declares none as such.
        default_mask_token_id, default_block_length: used, with a log line, when nothing else says it.
        block_length_suffix: pattern in the repository's name whose group 1 is the block length.
        decoding: fields of `MRPGenerationConfig` that the family's own script decodes with, where they are not ours.
    """

    native_type: str
    attention_pattern: str | None
    logit_shift: bool | None = False
    attention_by_name: Mapping[str, str] = field(default_factory=dict)
    native_fields: Mapping[str, str] = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)
    tensor_names: Mapping[str, str] = field(default_factory=dict)
    logit_scale: float | None = 1.0
    scaled_logits_field: str | None = None
    mask_id_fields: tuple[str, ...] = ("mask_token_id",)
    mask_tokens: tuple[str, ...] = ()
    default_mask_token_id: int | None = None
    block_length_fields: tuple[str, ...] = ("block_length", "block_size")
    block_length_suffix: str | None = None
    default_block_length: int | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)

    def native_config(self, fields: Mapping[str, Any], name: str) -> PreTrainedConfig:
        """The native config of a checkpoint whose config.json holds `fields`.

        Raises:
            ValueError: if transformers lacks the architecture, or the checkpoint uses a variant that it is not.
        """
        if self.native_type not in CONFIG_MAPPING:
            raise ValueError(
                f"backbone {name!r} is a {self.native_type}, which this version of transformers does not implement: "
                "install one that does, or load it by its own code with `trust_remote_code=True`, `mask_token_id`, "
                "`block_length`, `attention_pattern` and `logit_shift`."
            )
        for key, value in self.required.items():
            if fields.get(key, value) != value:
                raise ValueError(
                    f"backbone {name!r} has {key}={fields[key]!r} in its config, but the native {self.native_type} has "
                    f"{value!r}: it cannot be loaded."
                )
        native = {key: value for key, value in fields.items() if key not in (*UPSTREAM_ONLY, "model_type")}
        renamed = {
            key: fields[upstream] for key, upstream in self.native_fields.items() if fields.get(upstream) is not None
        }
        for upstream in self.native_fields.values():
            native.pop(upstream, None)
        return CONFIG_MAPPING[self.native_type](**{**native, **renamed})


_A2D_NAMES = {"mdlm": "bidirectional", "bd3lm": "block_causal"}


def _a2d(native_type: str) -> BackboneFamily:
    # dllm, dllm/pipelines/a2d: the architectures are unchanged; which of the two samplers a checkpoint was trained for
    # stands in its name alone. 32 is the block length of its bd3lm sampler.
    return BackboneFamily(
        native_type,
        attention_pattern=None,
        attention_by_name=_A2D_NAMES,
        mask_tokens=("<|mask|>", "<|MASK|>"),
        default_block_length=32,
    )


def _sdar(native_type: str) -> BackboneFamily:
    # JetAstra/SDAR, generate.py and README: `-b8`, `-b16`, ... in a model's name are its block length, 4 otherwise.
    return BackboneFamily(
        native_type,
        "block_causal",
        mask_tokens=("<|MASK|>",),
        block_length_suffix=r"-b(\d+)$",
        default_block_length=4,
    )


def _masked_lm(native_type: str) -> BackboneFamily:
    return BackboneFamily(native_type, "bidirectional", mask_tokens=("[MASK]",))


# By upstream `model_type`.
FAMILIES: dict[str, BackboneFamily] = {
    # Native architectures under their own names: how such a checkpoint was trained to attend, only its owner knows.
    "qwen3": BackboneFamily("qwen3", "block_causal"),
    "qwen3_moe": BackboneFamily("qwen3_moe", "block_causal"),
    "qwen2": BackboneFamily("qwen2", attention_pattern=None, logit_shift=None),
    "llama": BackboneFamily("llama", attention_pattern=None, logit_shift=None, logit_scale=None),
    "sdar": _sdar("qwen3"),  # SDAR, TraDo
    "sdar_moe": _sdar("qwen3_moe"),
    # ML-GSAI/LLaDA, configuration_llada.py and modeling_llada.py: a Llama under OLMo's names.
    "llada": BackboneFamily(
        "llama",
        "bidirectional",
        native_fields={
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_key_value_heads": "n_kv_heads",
            "num_hidden_layers": "n_layers",
            "intermediate_size": "mlp_hidden_size",
            "vocab_size": "embedding_size",
            "max_position_embeddings": "max_sequence_length",
            "tie_word_embeddings": "weight_tying",
            "hidden_act": "activation_type",
        },
        required={
            "block_type": "llama",
            "layer_norm_type": "rms",
            "rope": True,
            "alibi": False,
            "attention_layer_norm": False,
            "include_bias": False,
            "include_qkv_bias": False,
            "input_emb_norm": False,
        },
        tensor_names={
            r"^model\.transformer\.wte\.": "model.embed_tokens.",
            r"^model\.transformer\.ln_f\.": "model.norm.",
            r"^model\.transformer\.ff_out\.": "lm_head.",
            r"^model\.transformer\.blocks\.(\d+)\.attn_norm\.": r"model.layers.\1.input_layernorm.",
            r"^model\.transformer\.blocks\.(\d+)\.ff_norm\.": r"model.layers.\1.post_attention_layernorm.",
            r"^model\.transformer\.blocks\.(\d+)\.attn_out\.": r"model.layers.\1.self_attn.o_proj.",
            r"^model\.transformer\.blocks\.(\d+)\.q_proj\.": r"model.layers.\1.self_attn.q_proj.",
            r"^model\.transformer\.blocks\.(\d+)\.k_proj\.": r"model.layers.\1.self_attn.k_proj.",
            r"^model\.transformer\.blocks\.(\d+)\.v_proj\.": r"model.layers.\1.self_attn.v_proj.",
            r"^model\.transformer\.blocks\.(\d+)\.ff_proj\.": r"model.layers.\1.mlp.gate_proj.",
            r"^model\.transformer\.blocks\.(\d+)\.up_proj\.": r"model.layers.\1.mlp.up_proj.",
            r"^model\.transformer\.blocks\.(\d+)\.ff_out\.": r"model.layers.\1.mlp.down_proj.",
        },
        scaled_logits_field="scale_logits",
    ),
    # HKUNLP/Dream, modeling_dream.py; DiffuCoder has the same type.
    "Dream": BackboneFamily("qwen2", "bidirectional", logit_shift=True),
    # NVlabs/Fast-dLLM v2, modeling.py and its generate: mask id and threshold are default arguments there.
    "Fast_dLLM_Qwen": BackboneFamily(
        "qwen2",
        "block_causal",
        logit_shift=True,
        block_length_fields=("bd_size",),
        default_block_length=32,
        default_mask_token_id=151665,
        decoding={"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.9},
    ),
    # inclusionAI/LLaDA2.X: mask id, block length and threshold are default arguments of its generate.
    "llada2_moe": BackboneFamily(
        "llada2_moe",
        "block_causal",
        mask_tokens=("<|mask|>",),
        default_mask_token_id=156895,
        default_block_length=32,
        decoding={"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.95},
    ),
    "a2d-qwen3": _a2d("qwen3"),
    "a2d-qwen2": _a2d("qwen2"),
    "a2d-llama": _a2d("llama"),
    "bert": _masked_lm("bert"),
    "modernbert": _masked_lm("modernbert"),
}
