"""The backbone table: one row a family, and how a name becomes a native config with its mask id and block length.

Published remote code of diffusion language models does not run on current transformers, but the weights are ordinary
architectures under another `model_type` (SDAR's are Qwen3's). So a backbone's config file is read as plain JSON, turned
into the native architecture's config, and its weights load into the native class; no remote code is ever run.
"""

import json
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils.hub import cached_file

logger = logging.getLogger(__name__)

# Says how to find the upstream code or how it once attended: neither holds for the native class.
UPSTREAM_ONLY = ("auto_map", "architectures", "attn_implementation", "_attn_implementation", "_name_or_path")


@dataclass(frozen=True)
class BackboneFamily:
    """One row: what a family of backbones is natively, and where it says what diffusion decoding needs.

    Args:
        native_type: `model_type` of the transformers architecture that its weights are.
        attention_pattern, logit_shift: as in `MRPConfig`.
        mask_id_fields, block_length_fields: config fields that may hold them, the first one set counts.
        mask_tokens: text of its mask token, where the tokenizer declares none as such.
        block_length_suffix: pattern in the repository's name whose group 1 is the block length.
        default_block_length: used, with a warning, when nothing else says it.
    """

    native_type: str
    attention_pattern: str
    logit_shift: bool
    mask_id_fields: tuple[str, ...] = ("mask_token_id",)
    mask_tokens: tuple[str, ...] = ()
    block_length_fields: tuple[str, ...] = ("block_length", "block_size")
    block_length_suffix: str | None = None
    default_block_length: int | None = None


# By upstream `model_type`. Source of SDAR's row: JetAstra/SDAR, generate.py and README (`-b8`, `-b16`, … in a model's
# name are its block length, which is 4 otherwise).
FAMILIES: dict[str, BackboneFamily] = {
    "qwen3": BackboneFamily("qwen3", "block_causal", logit_shift=False),
    "sdar": BackboneFamily(
        "qwen3",
        "block_causal",
        logit_shift=False,
        mask_tokens=("<|MASK|>",),
        block_length_suffix=r"-b(\d+)$",
        default_block_length=4,
    ),
}


@dataclass(frozen=True)
class ResolvedBackbone:
    """A backbone's native config and what `MRPConfig` has to say about it."""

    config: PreTrainedConfig
    mask_token_id: int
    block_length: int
    attention_pattern: str
    logit_shift: bool


def resolve_backbone(
    source: str | os.PathLike[str] | PreTrainedConfig,
    *,
    mask_token_id: int | None = None,
    block_length: int | None = None,
    attention_pattern: str | None = None,
    logit_shift: bool | None = None,
) -> ResolvedBackbone:
    """Look a backbone up in the table and settle what its family leaves open.

    Mask id and block length are taken from the argument, the config, the tokenizer, the family's default (with a
    warning), in this order. Nothing but small JSON files is read.

    Args:
        source: a folder, a Hub name, or the config of a native model.

    Raises:
        ValueError: if `source` is no backbone, its family is not in the table, or mask id or block length stay open.
    """
    if isinstance(source, PreTrainedConfig):
        name = source.name_or_path or ""
        fields = source.to_dict()
    else:
        name = os.fspath(source)
        fields = read_config_fields(name)
    family = find_family(fields.get("model_type"), name)
    if isinstance(source, PreTrainedConfig):
        config = source
    else:
        native = {key: value for key, value in fields.items() if key not in (*UPSTREAM_ONLY, "model_type")}
        config = CONFIG_MAPPING[family.native_type](**native)
    return ResolvedBackbone(
        config=config,
        mask_token_id=_mask_token_id(mask_token_id, fields, family, name),
        block_length=_block_length(block_length, fields, family, name),
        attention_pattern=family.attention_pattern if attention_pattern is None else attention_pattern,
        logit_shift=family.logit_shift if logit_shift is None else logit_shift,
    )


def load_backbone(
    name_or_path: str | os.PathLike[str],
    config: PreTrainedConfig,
    *,
    dtype: torch.dtype | str | None,
    device_map: Any,
    attn_implementation: str | None,
) -> PreTrainedModel:
    """Load a backbone's safetensors weights into the native class of `config`.

    Raises:
        ValueError: if there are none, or they do not fit `config`.
    """
    where = f"the weights of backbone {os.fspath(name_or_path)!r}"
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name_or_path,
            config=config,
            dtype=dtype,
            device_map=device_map,
            attn_implementation=attn_implementation,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_loaded` says it in one sentence
        )
    except OSError as error:
        raise ValueError(f"{where} cannot be read: there must be safetensors files beside its config.json.") from error
    backbone, info = loaded
    check_loaded(info, where, "take config.json and weights from the same place.")
    return backbone


def check_loaded(info: dict[str, Any], where: str, remedy: str, allow_mismatch: bool = False) -> None:
    """Raise a `ValueError` if a load left tensors out or met other shapes, instead of initialising them in silence."""
    if info["mismatched_keys"] and not allow_mismatch:
        name, found, wanted = sorted(info["mismatched_keys"])[0]
        raise ValueError(
            f"{where} do not fit its config.json: {name} has shape {tuple(found)} instead of {tuple(wanted)}; {remedy}"
        )
    if info["missing_keys"]:
        raise ValueError(f"{where} do not fit its config.json: {_first(info['missing_keys'])} missing; {remedy}")


def _first(names: Iterable[str]) -> str:
    """The first of some tensor names, and how many more there are."""
    first, *more = sorted(names)
    return f"{first} and {len(more)} more tensors are" if more else f"{first} is"


def read_config_fields(name_or_path: str) -> dict[str, Any]:
    """The fields of a backbone's `config.json`, unchanged.

    Raises:
        ValueError: if there is none or it names no `model_type`.
    """
    looks_local = os.path.isabs(name_or_path) or name_or_path.startswith((".", "~")) or name_or_path.count("/") != 1
    if looks_local and not os.path.isdir(name_or_path):
        raise ValueError(f"`name_or_path` is {name_or_path!r}, but there is no such folder: check the path.")
    try:
        fields, _ = PreTrainedConfig.get_config_dict(name_or_path)
        cause = None
    except OSError as error:
        fields, cause = {}, error
    if not fields:
        raise ValueError(
            f"`name_or_path` is {name_or_path!r}, which is neither a folder with a config.json nor a model that can be "
            "reached on the Hub: pass the folder or the Hub name of a diffusion language model."
        ) from cause
    return fields


def find_family(model_type: str | None, name: str) -> BackboneFamily:
    """The row of an upstream `model_type`; a `ValueError` says why there is none."""
    if model_type is None:
        raise ValueError(f"the config of backbone {name!r} has no `model_type`: add the one of its architecture.")
    if model_type == "mrp":
        raise ValueError(f"{name!r} is an MRP checkpoint already: load it with `MRPForDiffusionLM.from_pretrained`.")
    if model_type not in FAMILIES:
        raise ValueError(
            f"backbone {name!r} has model_type={model_type!r}, which is not supported; supported: {sorted(FAMILIES)}."
        )
    return FAMILIES[model_type]


def _mask_token_id(argument: int | None, fields: dict[str, Any], family: BackboneFamily, name: str) -> int:
    if argument is not None:
        return argument
    for field in family.mask_id_fields:
        if fields.get(field) is not None:
            return fields[field]
    found = tokenizer_mask_id(name, family.mask_tokens) if name else None
    if found is None:
        raise ValueError(
            f"neither config nor tokenizer of backbone {name!r} gives a mask token: pass `mask_token_id=...`."
        )
    return found


def _block_length(argument: int | None, fields: dict[str, Any], family: BackboneFamily, name: str) -> int:
    if argument is not None:
        return argument
    for field in family.block_length_fields:
        if fields.get(field) is not None:
            return fields[field]
    default = family.default_block_length
    if family.block_length_suffix is not None:
        suffix = re.search(family.block_length_suffix, os.path.basename(os.path.normpath(name)))
        default = int(suffix[1]) if suffix else default
    if default is None:
        raise ValueError(f"the config of backbone {name!r} gives no block length: pass `block_length=...`.")
    logger.warning(
        "Backbone %r gives no block length: %d is assumed; pass `block_length=...` to say it.", name, default
    )
    return default


def tokenizer_mask_id(name_or_path: str, mask_tokens: tuple[str, ...] = ()) -> int | None:
    """Id of the tokenizer's mask token: the one that it declares, else the first of `mask_tokens` that it knows.

    Read from the tokenizer's JSON files, because a tokenizer may bring code of its own, which is never run here.
    """
    settings, vocabulary = (_read_json(name_or_path, file) for file in ("tokenizer_config.json", "tokenizer.json"))
    ids = {entry["content"]: int(key) for key, entry in settings.get("added_tokens_decoder", {}).items()}
    ids |= {entry["content"]: entry["id"] for entry in vocabulary.get("added_tokens", [])}
    declared = settings.get("mask_token")
    if isinstance(declared, dict):
        declared = declared["content"]
    for token in (declared, *mask_tokens):
        if token in ids:
            return ids[token]
    return None


def _read_json(name_or_path: str, file: str) -> dict[str, Any]:
    try:
        path = cached_file(name_or_path, file, _raise_exceptions_for_missing_entries=False)
    except OSError:
        return {}
    if path is None:
        return {}
    with open(path, encoding="utf-8") as handle:
        return json.load(handle)
