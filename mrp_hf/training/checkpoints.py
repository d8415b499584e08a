"""Checkpoints of a training run: the head and what resuming needs, never the frozen backbone.

A checkpoint is written under another name and renamed when it is complete, so a folder `checkpoint-N` is always whole.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from mrp_hf.modeling.configuration_mrp import MRPConfig
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

HEAD_WEIGHTS_NAME = "mrp_head.safetensors"
# A head trained under one of these is another head under other values, though its tensors may fit.
CONFIG_FIELDS = (
    "num_mrp_layers",
    "mrp_prediction",
    "block_length",
    "mask_token_id",
    "attention_pattern",
    "logit_shift",
)
_STAGE_PREFIX = "_saving-"  # not matched by `checkpoint-*`; names with an underscore are not uploaded to the Hub


def save_head(model: MRPForDiffusionLM, folder: str | os.PathLike[str]) -> None:
    """Write the head's weights and the model's config."""
    assert model.mrp_head is not None
    weights = {name: tensor.contiguous() for name, tensor in model.mrp_head.state_dict().items()}
    save_file(weights, Path(folder) / HEAD_WEIGHTS_NAME, metadata={"format": "pt"})
    model.config.save_pretrained(folder)


def load_head(model: MRPForDiffusionLM, folder: str | os.PathLike[str]) -> None:
    """Read what `save_head` wrote into the model's head.

    Raises:
        ValueError: if there is no head in `folder` or it is one for another model.
    """
    assert model.mrp_head is not None
    file = Path(folder) / HEAD_WEIGHTS_NAME
    if not file.is_file():
        raise ValueError(f"{os.fspath(folder)!r} has no {HEAD_WEIGHTS_NAME}: pass a checkpoint that MRPTrainer wrote.")
    saved = MRPConfig.from_pretrained(folder)
    for name in CONFIG_FIELDS:
        if getattr(saved, name) != getattr(model.config, name):
            raise ValueError(
                f"the head in {os.fspath(folder)!r} was trained with {name}={getattr(saved, name)!r}, the model has "
                f"{getattr(model.config, name)!r}: build the model as for the run that wrote the checkpoint."
            )
    try:
        model.mrp_head.load_state_dict(load_file(file))
    except RuntimeError as error:
        raise ValueError(
            f"the head in {os.fspath(folder)!r} does not fit the model: attach the head to the same backbone. {error}"
        ) from error


def missing_files(checkpoint: str | os.PathLike[str]) -> list[str]:
    """What a folder lacks to resume from it."""
    needed = (HEAD_WEIGHTS_NAME, OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME)
    return [name for name in needed if not (Path(checkpoint) / name).is_file()]


def find_checkpoint(output_dir: str, resume_from_checkpoint: str | bool) -> str:
    """The folder to resume from: the one that was named, or the newest complete one of `output_dir` for `True`.

    Raises:
        ValueError: if there is none.
    """
    if isinstance(resume_from_checkpoint, str):
        missing = missing_files(resume_from_checkpoint)
        if missing:
            raise ValueError(
                f"`resume_from_checkpoint` is {resume_from_checkpoint!r}, which lacks {missing}: pass a folder "
                f"{PREFIX_CHECKPOINT_DIR}-N that MRPTrainer wrote (without `save_only_model`)."
            )
        return resume_from_checkpoint
    numbered = []
    for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        number = folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if number.isdecimal() and not missing_files(folder):
            numbered.append((int(number), os.fspath(folder)))
    if not numbered:
        raise ValueError(
            f"`resume_from_checkpoint=True`, but `output_dir` {output_dir!r} holds no complete checkpoint: start "
            "without `resume_from_checkpoint`, or pass the folder of one."
        )
    return max(numbered)[1]


@contextmanager
def staged_folder(folder: str | os.PathLike[str], is_main: bool, barrier: Callable[[], None]) -> Iterator[Path]:
    """A folder to write into that takes the name `folder` when all processes have left the block."""
    target = Path(folder)
    stage = target.with_name(_STAGE_PREFIX + target.name)
    if is_main:
        remove_unfinished(target.parent)
        stage.mkdir(parents=True)
    barrier()
    yield stage
    barrier()
    if is_main:
        if target.exists():
            shutil.rmtree(target)
        stage.rename(target)
    barrier()


def remove_unfinished(output_dir: str | os.PathLike[str]) -> None:
    """Remove what processes that were killed while saving have left behind."""
    for leftover in Path(output_dir).glob(f"{_STAGE_PREFIX}{PREFIX_CHECKPOINT_DIR}-*"):
        shutil.rmtree(leftover)
