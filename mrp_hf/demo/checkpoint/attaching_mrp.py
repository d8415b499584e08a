"""Putting a fresh head on a backbone: the body of `MRPForDiffusionLM.from_backbone`."""

import logging
import os
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from .configuration_generation_mrp import MRPGenerationConfig
from .architectures_mrp import architecture_of
from .backbones_mrp import DIFFUSION_FIELDS, load_backbone, resolve_backbone
from .configuration_mrp import MRPConfig

logger = logging.getLogger(__name__)

# Settings of `MRPConfig` that are taken by name, besides `DIFFUSION_FIELDS`; the others follow from the backbone.
HEAD_OVERRIDES = ("mrp_prediction", "mrp_initializer_range")
HEAD_INITIALIZATIONS = ("normal", "backbone")
ATTENTION_IMPLEMENTATIONS = ("sdpa", "eager")
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def attach_head(
    model_class: Any,
    name_or_path_or_model: str | os.PathLike[str] | PreTrainedModel,
    num_mrp_layers: int,
    head_initialization: str,
    loading: dict[str, Any],
    trust_remote_code: bool,
    overrides: dict[str, Any],
) -> Any:
    """A `model_class` of a backbone and a fresh head; arguments and errors are described in `from_backbone`.

    Args:
        loading: `dtype`, `device_map`, `attn_implementation` and `quantization_config`, `None` where not given.
    """
    _check_arguments(head_initialization, loading["attn_implementation"], overrides)
    source, name = _source(name_or_path_or_model, loading)
    resolved = resolve_backbone(
        source,
        **{field: overrides.get(field) for field in DIFFUSION_FIELDS},
        trust_remote_code=trust_remote_code,
    )
    copies_layers = head_initialization == "backbone" and num_mrp_layers > 0
    if copies_layers and not architecture_of(resolved.config).serves_as_head:
        raise ValueError(
            f"`head_initialization` is 'backbone', but layers of a {resolved.config.model_type} backbone cannot be a "
            "head's: use 'normal'."
        )
    logger.info("Backbone %s: %s.", name, resolved)
    config = MRPConfig(
        backbone_config=resolved.config,
        backbone_name_or_path=name,
        num_mrp_layers=num_mrp_layers,
        mask_token_id=resolved.mask_token_id,
        block_length=resolved.block_length,
        attention_pattern=resolved.attention_pattern,
        logit_shift=resolved.logit_shift,
        logit_scale=resolved.logit_scale,
        **{field: overrides[field] for field in HEAD_OVERRIDES if field in overrides},
    )
    backbone: Any = name_or_path_or_model
    if isinstance(source, str):
        backbone = load_backbone(source, resolved, **loading)
    config.dtype = backbone.config.dtype = backbone.dtype
    config._attn_implementation = backbone.config._attn_implementation
    model = model_class(config, backbone=backbone)
    if model.mrp_head is not None:
        if copies_layers:
            model.mrp_head.start_from(backbone.base_model.layers)
        model.mrp_head.to(next(model.get_output_embeddings().parameters()).device)
    special_tokens = _config_of_special_tokens(backbone)
    model.generation_config = MRPGenerationConfig(
        **{name: getattr(special_tokens, name, None) for name in SPECIAL_TOKENS},
        **({} if resolved.family is None else resolved.family.decoding),
    )
    return model.eval()


def _check_arguments(head_initialization: str, attn_implementation: str | None, overrides: dict[str, Any]) -> None:
    unknown = sorted(set(overrides) - {*DIFFUSION_FIELDS, *HEAD_OVERRIDES})
    if unknown:
        raise TypeError(f"from_backbone() does not take {unknown}; it takes {DIFFUSION_FIELDS + HEAD_OVERRIDES}.")
    if head_initialization not in HEAD_INITIALIZATIONS:
        raise ValueError(f"`head_initialization` must be one of {HEAD_INITIALIZATIONS}, got {head_initialization!r}.")
    if attn_implementation not in (None, *ATTENTION_IMPLEMENTATIONS):
        raise ValueError(
            f"`attn_implementation` must be one of {ATTENTION_IMPLEMENTATIONS}, got {attn_implementation!r}."
        )


def _source(
    name_or_path_or_model: str | os.PathLike[str] | PreTrainedModel, loading: dict[str, Any]
) -> tuple[str | PreTrainedConfig, str | None]:
    """What `resolve_backbone` looks at, and the backbone's name."""
    if isinstance(name_or_path_or_model, PreTrainedModel):
        if any(value is not None for value in loading.values()):
            raise ValueError(
                "`dtype`, `device_map`, `attn_implementation` and `quantization_config` are for a backbone that is "
                "loaded by name: set them on the model that you pass."
            )
        if name_or_path_or_model.get_output_embeddings() is None:
            raise ValueError(
                f"the backbone is a {type(name_or_path_or_model).__name__}, which has no LM head: pass one that has."
            )
        return name_or_path_or_model.config, name_or_path_or_model.name_or_path
    if isinstance(name_or_path_or_model, str | os.PathLike):
        name = os.fspath(name_or_path_or_model)
        return name, name
    raise TypeError(
        "`name_or_path_or_model` must be a name, a path or a model of transformers, got a "
        f"{type(name_or_path_or_model).__name__}."
    )


def _config_of_special_tokens(backbone: PreTrainedModel) -> GenerationConfig | PreTrainedConfig:
    """Where the backbone's special tokens stand: a masked language model has no generation config."""
    return getattr(backbone, "generation_config", None) or backbone.config
