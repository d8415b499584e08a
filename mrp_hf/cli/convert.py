"""`mrp-hf convert`: a checkpoint in another format."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    full = "full"
    head = "head"
    published = "published"


class Prediction(StrEnum):
    residual = "residual"
    direct = "direct"


def convert(
    source: Annotated[str, typer.Argument(help="Folder or Hub name of an MRP checkpoint; 'demo': the shipped one.")],
    target: Annotated[Path, typer.Argument(help="Folder to write; it must be new or empty.")],
    to: Annotated[
        Format,
        typer.Option(help="full: backbone and head; head: the head alone; published: SDARMRPForCausalLM's layout."),
    ],
    backbone: Annotated[
        str | None, typer.Option(help="Backbone that a head-only source reads, or a head-only target names.")
    ] = None,
    prediction: Annotated[
        Prediction | None, typer.Option(help="What a published head predicts, if its name does not say so.")
    ] = None,
) -> None:
    """Write a checkpoint, of whatever format, in another one; every bit of the weights is kept."""
    from transformers.utils.logging import disable_progress_bar

    from mrp_hf.checkpoints import convert as convert_checkpoint
    from mrp_hf.cli.loading import DEMO
    from mrp_hf.demo.shipped import shipped_checkpoint

    disable_progress_bar()
    model = convert_checkpoint(
        str(shipped_checkpoint()) if source == DEMO else source,
        target,
        to.value,
        backbone=backbone,
        mrp_prediction=prediction and prediction.value,
    )
    size = sum(file.stat().st_size for file in target.glob("*.safetensors")) / 1e6
    of = f" for backbone {model.config.backbone_name_or_path}" if to is Format.head else ""
    typer.echo(f"Wrote {target}: {to.value} checkpoint{of}, {size:.1f} MB of weights.")
