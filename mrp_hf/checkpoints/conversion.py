"""A checkpoint of one format in another: full, head only, published."""

import json
import os
import shutil
from pathlib import Path
from typing import Literal, get_args

from transformers.utils.hub import cached_file

from mrp_hf.checkpoints.published import check_exportable, export_published
from mrp_hf.modeling.backbones_mrp import is_local, read_config_fields
from mrp_hf.modeling.checkpoint_mrp import STAGE_PREFIX, staged
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.modeling.published_mrp import is_published

Format = Literal["full", "head", "published"]
FORMATS: tuple[Format, ...] = get_args(Format)
TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: Format,
    *,
    backbone: str | None = None,
    mrp_prediction: str | None = None,
) -> MRPForDiffusionLM:
    """Write the checkpoint `source`, of any format, to the folder `target` in the format `to`, tokenizer included.

    Weights keep their dtype and every bit.

    Args:
        source: folder or Hub name; its format is found out.
        target: a folder that does not exist or is empty. It is filled when everything is complete.
        to: `"full"`, `"head"` or `"published"`.
        backbone: folder or Hub name of the backbone: where a head-only `source` takes it from, and what a head-only
            `target` names. By default as `source` says.
        mrp_prediction: `"direct"` or `"residual"`, for a published `source` that does not say what its head predicts.

    Returns:
        The model that was written.

    Raises:
        ValueError: for another format, a target with files in it, or a checkpoint that cannot be loaded or written so.
    """
    folder = Path(target)
    if to not in FORMATS:
        raise ValueError(f"`to` must be one of {FORMATS}, got {to!r}.")
    occupied = folder.exists() and not folder.is_dir()
    if occupied or any(not file.name.startswith(STAGE_PREFIX) for file in folder.glob("*")):
        raise ValueError(f"`target` is {str(folder)!r}, which is not an empty folder: name a new one.")
    fields = read_config_fields(os.fspath(source))
    is_head_only = fields.get("mrp_head_only", False)
    if backbone is not None and not is_head_only and to != "head":
        raise ValueError(f"`backbone` is {backbone!r}, but neither `source` nor `target` is head-only: leave it out.")
    if mrp_prediction is not None and not is_published(fields):
        raise ValueError(
            f"`mrp_prediction` is {mrp_prediction!r}, but `source` is not of the published layout and says itself what "
            "its head predicts: leave it out."
        )
    options = {"backbone": backbone if is_head_only else None, "mrp_prediction": mrp_prediction}
    model: MRPForDiffusionLM = MRPForDiffusionLM.from_pretrained(
        source, **{name: value for name, value in options.items() if value is not None}
    )
    if to == "head":
        model.config.backbone_name_or_path = backbone or model.config.backbone_name_or_path
        if not model.config.backbone_name_or_path:
            raise ValueError(
                f"`source` {os.fspath(source)!r} does not say where its backbone came from: give a folder or Hub name "
                "as `backbone`, for the head-only checkpoint to name."
            )
        if is_local(model.config.backbone_name_or_path):
            read_config_fields(model.config.backbone_name_or_path)  # an error where loading would find no backbone
    if to == "published":
        check_exportable(model)
    existed = folder.exists()
    try:
        with staged(folder) as stage:
            if to == "published":
                export_published(model, stage)
            else:
                model.save_pretrained(stage, head_only=to == "head")
            copy_tokenizer(source, stage)
    except BaseException:
        if not existed:
            folder.rmdir()
        raise
    return model


def copy_tokenizer(source: str | os.PathLike[str], folder: Path) -> None:
    """Copy the tokenizer's files, and the Python files that its config names, as they are."""
    for name in TOKENIZER_FILES:
        _copy(source, name, folder)
    config_file = folder / "tokenizer_config.json"
    settings = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
    for classes in settings.get("auto_map", {}).values():
        for reference in [classes] if isinstance(classes, str) else classes:
            if reference is not None and "--" not in reference:
                _copy(source, f"{reference.split('.')[0]}.py", folder)


def _copy(source: str | os.PathLike[str], name: str, folder: Path) -> None:
    found = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    if found is not None:
        shutil.copyfile(found, folder / name)
