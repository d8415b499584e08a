"""From a name to a frozen backbone: its family, native config, mask id and block length, then its weights.

Published remote code of diffusion language models does not run on current transformers, but the weights are ordinary
architectures under another `model_type` (SDAR's are Qwen3's). So a backbone's config file is read as plain JSON, turned
into the native architecture's config, and its weights load into the native class. Remote code is run only where a
backbone is in no row of the table (`families_mrp.py`) and the caller trusts it.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils.hub import cached_file

from .architectures_mrp import architecture_of
from .families_mrp import FAMILIES, BackboneFamily

logger = logging.getLogger(__name__)

LAYER = re.compile(r"(model|bert)\.(encoder\.)?layers?\.\d+\.")
# Settings of `MRPConfig` that follow from the backbone, unless they are given.
DIFFUSION_FIELDS = ("mask_token_id", "block_length", "attention_pattern", "logit_shift", "logit_scale")


@dataclass(frozen=True)
class ResolvedBackbone:
    """A backbone's config and what `MRPConfig` has to say about it."""

    config: PreTrainedConfig
    mask_token_id: int
    block_length: int | None
    attention_pattern: str
    logit_shift: bool
    logit_scale: float
    family: BackboneFamily | None
    """Its row of the table; `None` where its own code is used."""

    def __str__(self) -> str:
        kind = "its own code" if self.family is None else f"the native {self.config.model_type}"
        shift = ", logits shifted by one" if self.logit_shift else ""
        blocks = "one block" if self.block_length is None else f"blocks of {self.block_length}"
        return f"loaded into {kind}, {self.attention_pattern}{shift}, {blocks}, mask token {self.mask_token_id}"


def resolve_backbone(
    source: str | os.PathLike[str] | PreTrainedConfig,
    *,
    mask_token_id: int | None = None,
    block_length: int | None = None,
    attention_pattern: str | None = None,
    logit_shift: bool | None = None,
    logit_scale: float | None = None,
    trust_remote_code: bool = False,
) -> ResolvedBackbone:
    """Look a backbone up in the table and settle what its family leaves open.

    Mask id and block length are taken from the argument, the config, the tokenizer, the family's default (with a
    warning), in this order. Nothing but small JSON files is read. A backbone of no family loads by its own code where
    that is trusted, and then nothing is guessed.

    Args:
        source: a folder, a Hub name, or the config of a loaded model.

    Raises:
        ValueError: if `source` is no backbone, its family is not in the table, or something stays open.
    """
    given = {
        "mask_token_id": mask_token_id,
        "block_length": block_length,
        "attention_pattern": attention_pattern,
        "logit_shift": logit_shift,
    }
    if isinstance(source, PreTrainedConfig):
        name = source.name_or_path or ""
        fields = source.to_dict()
    else:
        name = os.fspath(source)
        fields = read_config_fields(name)
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        raise ValueError(f"the config of backbone {name!r} has no `model_type`: add the one of its architecture.")
    if model_type == "mrp":
        raise ValueError(f"{name!r} is an MRP checkpoint already: load it with `MRPForDiffusionLM.from_pretrained`.")
    family = FAMILIES.get(model_type)
    if trust_remote_code and (family is None or family.native_type not in CONFIG_MAPPING):
        return _resolve_own_code(source, name, given, 1.0 if logit_scale is None else logit_scale)
    if family is None:
        raise ValueError(
            f"backbone {name!r} has model_type={model_type!r}, which is in no row of the table ({sorted(FAMILIES)}): "
            "load it by its own code with `trust_remote_code=True`, and say `mask_token_id`, `block_length`, "
            "`attention_pattern` and `logit_shift`."
        )
    config = source if isinstance(source, PreTrainedConfig) else family.native_config(fields, name)
    pattern = attention_pattern or _attention_pattern(family, name)
    logit_shift = family.logit_shift if logit_shift is None else logit_shift
    if logit_shift is None:
        raise ValueError(
            f"whether the logits of backbone {name!r} are shifted, its config does not say: pass `logit_shift`, True "
            "where token i is predicted at i - 1."
        )
    if logit_scale is None:
        logit_scale = family.logit_scale
        if family.scaled_logits_field is not None and fields.get(family.scaled_logits_field):
            logit_scale = config.hidden_size**-0.5
    if logit_scale is None:
        raise ValueError(
            f"whether the logits of backbone {name!r} are scaled, its config does not say: pass `logit_scale`, 1.0 "
            "where they are not."
        )
    return ResolvedBackbone(
        config=config,
        mask_token_id=_mask_token_id(mask_token_id, fields, family, name),
        block_length=_block_length(block_length, fields, family, name, pattern),
        attention_pattern=pattern,
        logit_shift=logit_shift,
        logit_scale=logit_scale,
        family=family,
    )


def _resolve_own_code(source: Any, name: str, given: dict[str, Any], logit_scale: float) -> ResolvedBackbone:
    optional = ("block_length",) if given["attention_pattern"] == "bidirectional" else ()
    missing = [field for field, value in given.items() if value is None and field not in optional]
    if missing:
        raise ValueError(
            f"backbone {name!r} is loaded by its own code, of which nothing is known: pass "
            f"{', '.join(f'`{field}=...`' for field in missing)} as it was trained."
        )
    config = source
    if not isinstance(source, PreTrainedConfig):
        config = AutoConfig.from_pretrained(name, trust_remote_code=True)
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings")
    unsaid = [size for size in sizes if not isinstance(getattr(config, size, None), int)]
    if unsaid:
        raise ValueError(f"the config of backbone {name!r} does not say {unsaid}: add them to its config.json.")
    return ResolvedBackbone(config=config, logit_scale=logit_scale, family=None, **given)


def load_backbone(
    name_or_path: str | os.PathLike[str],
    resolved: ResolvedBackbone,
    *,
    dtype: torch.dtype | str | None,
    device_map: Any,
    attn_implementation: str | None,
    quantization_config: Any = None,
) -> PreTrainedModel:
    """Load a backbone's safetensors weights through transformers' own loader.

    Raises:
        ValueError: if there are none, or they do not fit the config.
    """
    where = f"the weights of backbone {os.fspath(name_or_path)!r}"
    own_code = resolved.family is None
    names = {} if resolved.family is None else dict(resolved.family.tensor_names)
    auto_class = _auto_class_of_own_code(resolved.config) if own_code else architecture_of(resolved.config).auto_class
    try:
        with reading(where):
            loaded: Any = auto_class.from_pretrained(
                name_or_path,
                config=resolved.config,
                dtype=dtype,
                device_map=device_map,
                attn_implementation=attn_implementation,
                quantization_config=quantization_config,
                trust_remote_code=own_code,
                key_mapping=names or None,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_loaded` says it in one sentence
            )
    except OSError as error:
        raise ValueError(
            f"{where} cannot be read: there must be safetensors files beside its config.json, all that its index "
            f"names. ({error})"
        ) from error
    backbone, info = loaded
    check_loaded(info, where, "take config.json and weights from the same place.")
    too_many = sorted(name for name in info["unexpected_keys"] if LAYER.match(name))
    if too_many:
        raise ValueError(
            f"{where} do not fit its config.json: {too_many[0]} belongs to a layer that the config does not have; take "
            "both from the same place."
        )
    warn_of_unused(info, where)
    if names:
        backbone._weight_conversions = None  # else saving it would turn the renaming round, under the native config
    return backbone


def _auto_class_of_own_code(config: PreTrainedConfig) -> Any:
    """The Auto class that gives the model with its LM head: families map `AutoModel` to it or to the model without."""
    auto_map = getattr(config, "auto_map", None) or {}
    for auto_class in (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModel):
        if auto_class.__name__ in auto_map:
            return auto_class
    raise ValueError(f"the config of {config.name_or_path!r} names no model class of its own in `auto_map`.")


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Inside, transformers loads weights; what is missing or does not fit is left to `check_loaded` to say, once.

    Raises:
        ValueError: for a damaged file.
    """
    log = logging.getLogger("transformers.modeling_utils")
    log.addFilter(_is_no_report)
    try:
        yield
    except SafetensorError as error:
        raise ValueError(
            f"{where} cannot be read: a file is damaged or incomplete ({error}); fetch it again."
        ) from error
    finally:
        log.removeFilter(_is_no_report)


def _is_no_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()


def check_loaded(info: dict[str, Any], where: str, remedy: str, allow_mismatch: bool = False) -> None:
    """Raise a `ValueError` if a load left tensors out or met other shapes, instead of initialising them in silence."""
    if info["mismatched_keys"] and not allow_mismatch:
        name, found, wanted = sorted(info["mismatched_keys"])[0]
        raise ValueError(
            f"{where} do not fit its config.json: {name} has shape {tuple(found)} instead of {tuple(wanted)}; {remedy}"
        )
    if info["missing_keys"]:
        raise ValueError(f"{where} do not fit its config.json: {_first(info['missing_keys'])} missing; {remedy}")


def warn_of_unused(info: dict[str, Any], where: str) -> None:
    """Say which tensors of a load have no place in the model."""
    if info["unexpected_keys"]:
        logger.warning("Of %s, %s not used.", where, _first(info["unexpected_keys"]))


def _first(names: Iterable[str]) -> str:
    """The first of some tensor names, and how many more there are."""
    first, *more = sorted(names)
    return f"{first} and {len(more)} more tensors are" if more else f"{first} is"


def is_local(name_or_path: str) -> bool:
    """Whether a name can only be a path: a Hub name has one slash."""
    return os.path.isabs(name_or_path) or name_or_path.startswith((".", "~")) or name_or_path.count("/") != 1


def read_config_fields(name_or_path: str) -> dict[str, Any]:
    """The fields of a backbone's `config.json`, unchanged.

    Raises:
        ValueError: if there is none or it names no `model_type`.
    """
    if is_local(name_or_path) and not os.path.isdir(name_or_path):
        raise ValueError(f"`name_or_path` is {name_or_path!r}, but there is no such folder: check the path.")
    try:
        fields, _ = PreTrainedConfig.get_config_dict(name_or_path)
        cause = None
    except OSError as error:
        fields, cause = {}, error
    if not fields and os.path.isfile(os.path.join(name_or_path, "config.json")):
        raise ValueError(f"the config.json of {name_or_path!r} cannot be read: {cause}") from cause
    if not fields:
        raise ValueError(
            f"`name_or_path` is {name_or_path!r}, which is neither a folder with a config.json nor a model that can be "
            "reached on the Hub: pass the folder or the Hub name of a diffusion language model."
        ) from cause
    return fields


def _attention_pattern(family: BackboneFamily, name: str) -> str:
    if family.attention_pattern is not None:
        return family.attention_pattern
    basename = os.path.basename(os.path.normpath(name)).lower()
    for part, pattern in family.attention_by_name.items():
        if part in basename:
            return pattern
    by_name = f", and its name says none of {list(family.attention_by_name)}" if family.attention_by_name else ""
    raise ValueError(
        f"backbones of the family of {name!r} attend in different ways{by_name}: pass `attention_pattern` as it was "
        "trained, 'block_causal' or 'bidirectional'."
    )


def _mask_token_id(argument: int | None, fields: dict[str, Any], family: BackboneFamily, name: str) -> int:
    if argument is not None:
        return argument
    for field in family.mask_id_fields:
        if fields.get(field) is not None:
            return fields[field]
    found = tokenizer_mask_id(name, family.mask_tokens) if name else None
    if found is not None:
        return found
    if family.default_mask_token_id is None:
        raise ValueError(
            f"neither config nor tokenizer of backbone {name!r} gives a mask token: pass `mask_token_id=...`."
        )
    logger.warning(
        "Backbone %r gives no mask token: %d, its family's, is assumed; pass `mask_token_id=...` to say it.",
        name,
        family.default_mask_token_id,
    )
    return family.default_mask_token_id


def _block_length(
    argument: int | None, fields: dict[str, Any], family: BackboneFamily, name: str, attention_pattern: str
) -> int | None:
    if argument is not None:
        return argument
    for field in family.block_length_fields:
        if fields.get(field) is not None:
            return fields[field]
    if attention_pattern == "bidirectional":
        return None
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
