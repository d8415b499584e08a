"""Head-only checkpoints: the head's tensors, and the name and fingerprint of the backbone that they were trained on.

Megabytes instead of gigabytes. Loading fetches the backbone and checks that it is the same one: a head on another
backbone gives no error by itself, only bad drafts.
"""

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from .backbones_mrp import load_backbone, reading, resolve_backbone
from .configuration_mrp import MRPConfig
from .head_mrp import MRPHead

logger = logging.getLogger(__name__)

HEAD_PREFIX = "mrp_head."
CHUNK = 2**22  # elements that the fingerprint reads at a time
# Fields of a native config in which two equal backbones may differ.
INCIDENTAL_FIELDS = ("use_cache", "initializer_range", "max_window_layers")
BACKBONE_OPTIONS = ("dtype", "device_map", "attn_implementation")
REPOSITORY_OPTIONS = ("cache_dir", "force_download", "proxies", "local_files_only", "token", "revision", "subfolder")
# What the Auto classes add to a call; nothing here depends on it.
IGNORED_OPTIONS = ("_commit_hash", "adapter_kwargs", "code_revision")


@torch.no_grad()
def backbone_fingerprint(backbone: PreTrainedModel) -> str | None:
    """SHA-256 over names, shapes and checksums of a backbone's tensors; `None` where they are not as they were saved:
    quantised, rounded to float16, or offloaded.

    Elements are read as bfloat16, so that a backbone has one fingerprint in bfloat16 and float32. A checksum is the sum
    of all elements' bits, each times an odd number of its place's, in wrapping 64-bit integers: exact, so equal on
    every device.
    """
    if getattr(backbone, "is_quantized", False) or getattr(backbone, "hf_quantizer", None) is not None:
        return None
    digest = hashlib.sha256()
    for name, tensor in sorted(backbone.state_dict().items()):
        if tensor.is_meta or tensor.dtype == torch.float16:
            return None
        digest.update(f"{name} {tuple(tensor.shape)} {_checksum(tensor.reshape(-1))}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _checksum(flat: Tensor) -> int:
    total = 0
    for start in range(0, len(flat), CHUNK):
        bits = flat[start : start + CHUNK].to(torch.bfloat16).view(torch.int16).long()
        place = torch.arange(start, start + len(bits), device=flat.device)
        total += int((bits * (place * 0x9E3779B1 * 2 + 1)).sum())
    return total % 2**64


@contextmanager
def saving_head_only(
    model: Any, state_dict: dict[str, Tensor] | None, folder: str | os.PathLike[str]
) -> Iterator[dict[str, Tensor]]:
    """The head's tensors under their names in the model; inside, `model.config` says that they are all there is.

    A folder of the backbone is written with its full path, to be found from every working directory.

    Raises:
        ValueError: if there is no head, no name by which loading would find the backbone, or the backbone is in
            `folder`, where it would be overwritten.
    """
    config: MRPConfig = model.config
    if model.mrp_head is None:
        raise ValueError("`head_only=True`, but this model has no head (num_mrp_layers=0): there is nothing to save.")
    if not config.backbone_name_or_path:
        raise ValueError(
            "`head_only=True`, but `model.config.backbone_name_or_path` is not set: set it to the folder or Hub name "
            "that loading is to fetch the backbone from."
        )
    name = config.backbone_name_or_path
    if os.path.isdir(name) and os.path.isdir(folder) and os.path.samefile(name, folder):
        raise ValueError(f"`head_only=True`, but {name!r} is the folder of the backbone itself: save into another one.")
    if os.path.isdir(name):
        config.backbone_name_or_path = os.path.abspath(name)
    config.mrp_head_only, config.backbone_fingerprint = True, backbone_fingerprint(model.backbone)
    try:
        tensors = model.state_dict() if state_dict is None else state_dict
        yield {name: tensor for name, tensor in tensors.items() if name.startswith(HEAD_PREFIX)}
    finally:
        config.backbone_name_or_path = name
        config.mrp_head_only, config.backbone_fingerprint = False, None


def load_head_only(
    model_class: Any,
    name_or_path: str | os.PathLike[str],
    config: MRPConfig,
    backbone: str | os.PathLike[str] | PreTrainedModel | None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """A model of `model_class` from a head-only checkpoint and its backbone, and the loading info of the head.

    Args:
        name_or_path: folder or Hub name of the head-only checkpoint.
        config: its config.
        backbone: where the backbone comes from, if not from `config.backbone_name_or_path`.
        options: `dtype` (by default as the model was saved), `device_map` and `attn_implementation`, for backbone and
            head; `generation_config`; `trust_remote_code`, for a backbone of no known family; where on the Hub the
            checkpoint is found.

    Raises:
        ValueError: if there is no backbone, or it is another one than the head was trained on.
        TypeError: for an unknown option.
    """
    where = f"head-only checkpoint {os.fspath(name_or_path)!r}"
    found = {name: options.pop(name) for name in REPOSITORY_OPTIONS if name in options}
    loading = {name: options.pop(name, None) for name in BACKBONE_OPTIONS}
    loading["dtype"] = options.pop("torch_dtype", loading["dtype"])
    trust = bool(options.pop("trust_remote_code", False))
    generation = [options.pop(name, None) for name in ("generation_config", "_from_auto", "_from_pipeline")]
    unknown = sorted(set(options) - {*IGNORED_OPTIONS})
    if unknown:
        raise TypeError(f"{where} does not load with {unknown}: load the backbone so, and pass it as `backbone=...`.")
    source = config.backbone_name_or_path if backbone is None else backbone
    loaded = _load_backbone(where, config, source, loading, trust)
    fingerprint = backbone_fingerprint(loaded)
    if fingerprint is None or config.backbone_fingerprint is None:
        logger.warning(
            "Whether the backbone is the one that %s was trained on cannot be checked: one of the two was quantised, "
            "in float16 or offloaded.",
            where,
        )
    elif fingerprint != config.backbone_fingerprint:
        raise ValueError(
            f"{where} was trained on other weights than those of backbone {loaded.name_or_path!r}: pass the backbone "
            "that it was trained on as `backbone=...`."
        )
    if backbone is not None:
        config.backbone_name_or_path = loaded.name_or_path or config.backbone_name_or_path
    config.mrp_head_only, config.backbone_fingerprint = False, None
    config.backbone_config = loaded.config
    config.dtype = loaded.config.dtype = loaded.dtype
    config._attn_implementation = loaded.config._attn_implementation
    config.name_or_path = os.fspath(name_or_path)
    head, info = _load_head(name_or_path, config, loaded, **found)
    model = model_class(config, backbone=loaded, mrp_head=head).eval()
    model.adjust_generation_fn(*generation, name_or_path, **found)
    return model, info


def _load_head(
    name_or_path: str | os.PathLike[str], config: MRPConfig, backbone: PreTrainedModel, **options: Any
) -> tuple[MRPHead, dict[str, Any]]:
    """A checkpoint's head for `backbone`, where its LM head is, and the loading info with names as in the model."""
    head_config = MRPHead.config_for(
        backbone.config, config.num_mrp_layers, config.mrp_initializer_range, backbone.dtype
    )
    with reading(f"the weights of head-only checkpoint {os.fspath(name_or_path)!r}"):
        loaded: Any = MRPHead.from_pretrained(
            name_or_path,
            config=head_config,
            dtype=backbone.dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_loaded` says it in one sentence
            **options,
        )
    head, info = loaded
    for kind in ("missing_keys", "unexpected_keys"):
        info[kind] = {f"{HEAD_PREFIX}{name.removeprefix(HEAD_PREFIX)}" for name in info[kind]}
    info["mismatched_keys"] = {
        (f"{HEAD_PREFIX}{name.removeprefix(HEAD_PREFIX)}", *shapes) for name, *shapes in info["mismatched_keys"]
    }
    return head.to(next(backbone.get_output_embeddings().parameters()).device), info


def _load_backbone(
    where: str,
    config: MRPConfig,
    source: str | os.PathLike[str] | PreTrainedModel | None,
    options: dict[str, Any],
    trust_remote_code: bool,
) -> PreTrainedModel:
    """The backbone of a head-only checkpoint: `source` itself if it is a model, else loaded from there."""
    if isinstance(source, PreTrainedModel):
        if any(value is not None for value in options.values()):
            raise ValueError(
                f"`dtype`, `device_map` and `attn_implementation` are for a backbone that is loaded with {where}: set "
                "them on the model that you pass."
            )
        _check_fits(where, config.backbone_config, source.config)
        return source
    if not source:
        raise ValueError(
            f"{where} does not name its backbone (`backbone_name_or_path` is {source!r}): pass a folder, a Hub name or "
            "a loaded model as `backbone=...`."
        )
    if options["dtype"] in (None, "auto"):
        options["dtype"] = config.dtype
    if options["attn_implementation"] is None:
        options["attn_implementation"] = config._attn_implementation  # where the Auto classes put it
    try:
        resolved = resolve_backbone(
            source,
            mask_token_id=config.mask_token_id,
            block_length=config.block_length,
            attention_pattern=config.attention_pattern,
            logit_shift=config.logit_shift,
            logit_scale=config.logit_scale,
            trust_remote_code=trust_remote_code,
        )
        _check_fits(where, config.backbone_config, resolved.config)
        return load_backbone(source, resolved, **options)
    except ValueError as error:
        raise ValueError(
            f"{where} cannot be used with backbone {os.fspath(source)!r}: pass another folder, a Hub name or a loaded "
            f"model as `backbone=...`. ({error})"
        ) from error


def _check_fits(where: str, wanted: PreTrainedConfig, found: PreTrainedConfig) -> None:
    """Raise a `ValueError` before anything is loaded if a backbone cannot be the one that a head was trained on."""
    incidental = {*PreTrainedConfig().to_dict(), *INCIDENTAL_FIELDS}
    fields, others = ({**config.to_dict(), "model_type": config.model_type} for config in (wanted, found))
    first = ["model_type", "vocab_size", "hidden_size", "num_hidden_layers"]
    for name in (*first, *sorted(fields.keys() & others.keys() - incidental)):
        if others.get(name) != fields.get(name):
            raise ValueError(
                f"{where} was trained on a backbone with {name}={fields.get(name)!r}, this one has "
                f"{others.get(name)!r}: pass the backbone that it was trained on as `backbone=...`."
            )
