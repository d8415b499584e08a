"""Loading a checkpoint in any of its formats: full, head only, or the published layout."""

import copy
import logging
import os
import re
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from .backbones_mrp import check_loaded, reading, warn_of_unused
from .configuration_mrp import CODE_VERSION, MRPConfig
from .head_only_mrp import HEAD_PREFIX, REPOSITORY_OPTIONS, load_head_only
from .published_mrp import KEY_MAPPING, fields_of_published, is_published

logger = logging.getLogger(__name__)

PICKLES = re.compile(r".+\.(bin|ckpt|pkl|pt|pth)")


def load_checkpoint(
    model_class: Any,
    load: Callable[..., Any],
    name_or_path: str | os.PathLike[str] | None,
    *args: Any,
    backbone: str | os.PathLike[str] | PreTrainedModel | None = None,
    **options: Any,
) -> Any:
    """The body of `MRPForDiffusionLM.from_pretrained`, where arguments and errors are described.

    Args:
        load: `PreTrainedModel.from_pretrained`, bound to `model_class`.
    """
    if not options.pop("use_safetensors", True):
        raise ValueError("`use_safetensors` is False, but checkpoints are read from safetensors files only.")
    wants_info = options.pop("output_loading_info", False)
    allow_mismatch = options.pop("ignore_mismatched_sizes", False)
    name = os.fspath(name_or_path or "")
    config, is_ours = read_config(model_class.config_class, name, options)
    head_only = config if config is not None and config.mrp_head_only else None
    if backbone is not None and head_only is None:
        raise ValueError(
            f"`backbone` is for head-only checkpoints, but {name!r} has its backbone inside: leave it out."
        )
    try:
        if head_only is not None:
            model, info = load_head_only(model_class, name, head_only, backbone, **options)
        else:
            if config is not None:
                options["config"] = config
            if not is_ours:
                options["key_mapping"] = KEY_MAPPING
            with reading(f"the weights of checkpoint {name!r}"):
                model, info = load(
                    name_or_path,
                    *args,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # `check_loaded` says it in one sentence
                    use_safetensors=True,
                    **options,
                )
    except OSError as error:
        pickles = [file for file in os.listdir(name) if PICKLES.fullmatch(file)] if os.path.isdir(name) else []
        if not pickles:
            raise
        raise ValueError(
            f"checkpoint {name!r} holds {min(pickles)}, but no model.safetensors: pickled weights are never read, save "
            "them as safetensors."
        ) from error
    where = f"the weights of checkpoint {name!r}"
    remedy = "take both from the same save, or put a fresh head on the backbone that it came from with `from_backbone`."
    check_loaded(info, where, remedy, allow_mismatch)
    left_over = sorted(key for key in info["unexpected_keys"] if key.startswith(HEAD_PREFIX))
    if left_over:
        raise ValueError(
            f"{where} do not fit its config.json: {left_over[0]} is not in a head of {model.config.num_mrp_layers} "
            f"layers; {remedy}"
        )
    warn_of_unused(info, where)
    if is_ours:
        _compare_versions(name, model.config.mrp_code_version)
    else:
        _leave_published_layout(model)
    model._freeze_backbone()
    return (model, info) if wants_info else model


def read_config(config_class: Any, name: str, options: dict[str, Any]) -> tuple[MRPConfig | None, bool]:
    """The config of a head-only or published checkpoint, and whether the checkpoint has our layout.

    Fields of the config among `options` are moved into it. For a full checkpoint there is no config here: reading it
    is left to transformers.

    Raises:
        ValueError: if the config says that it is of another model, or not of which.
    """
    given = options.get("config")
    if isinstance(given, PreTrainedConfig):
        if getattr(given, "mrp_head_only", False):
            return copy.deepcopy(options.pop("config")), True
        return None, True
    if given is not None or not name:
        return None, True
    try:
        where = {option: options[option] for option in REPOSITORY_OPTIONS if option in options}
        fields, _ = PreTrainedConfig.get_config_dict(name, **where)
    except OSError:  # an adapter's folder, or none at all: for transformers to say
        return None, True
    if fields and "model_type" not in fields:
        raise ValueError(
            f'the config of checkpoint {name!r} has no `model_type`: write "mrp" into it if MRPForDiffusionLM saved it.'
        )
    ours = is_published(fields), fields.get("mrp_head_only", False)
    if not any(ours):
        if fields and fields["model_type"] != config_class.model_type:
            raise ValueError(
                f"checkpoint {name!r} has model_type={fields['model_type']!r} and no MRP head: load it with "
                "`MRPForDiffusionLM.from_backbone`."
            )
        return None, True
    overrides = {field: options.pop(field) for field in MRPConfig.__annotations__ if field in options}
    if is_published(fields):
        open_fields = {field: overrides.get(field) for field in ("mask_token_id", "block_length")}
        return config_class(**fields_of_published(fields, name, **open_fields) | overrides), False
    return config_class.from_dict(fields | overrides), True


def _leave_published_layout(model: Any) -> None:
    """Let a model from a published checkpoint be like any other: saved under our names, ending at its own tokens."""
    model._weight_conversions = None  # else `save_pretrained` would turn the renaming round
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(model.generation_config, name) is None:
            setattr(model.generation_config, name, getattr(model.config.backbone_config, name))


def _compare_versions(name: str, version: str) -> None:
    if version != CODE_VERSION:
        logger.warning(
            "Checkpoint %r was saved by version %s of the MRP code and is loaded by version %s; "
            "`mrp-hf refresh FOLDER` brings its Python files up to date.",
            name,
            version,
            CODE_VERSION,
        )
