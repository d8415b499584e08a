"""`mrp-hf build-demo`: the demo checkpoint from nothing."""

from pathlib import Path
from typing import Annotated, Any

import typer


def build_demo(
    output: Annotated[Path, typer.Argument(help="Folder for the checkpoint.")],
    work: Annotated[Path, typer.Option(help="Folder for intermediate results; a second run goes on from them.")] = Path(
        "demo-build"
    ),
    backbone: Annotated[Path | None, typer.Option(help="A finished demo backbone; by default one is trained.")] = None,
    backbone_steps: Annotated[int | None, typer.Option(min=1, help="Training steps of the backbone.")] = None,
    head_steps: Annotated[int | None, typer.Option(min=1, help="Training steps of each head.")] = None,
    head_layers: Annotated[int | None, typer.Option(min=1, help="Decoder layers of the head.")] = None,
    head_learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate of the heads.")] = None,
) -> None:
    """Rebuild the demo checkpoint from nothing: train backbone, head and ablation head, evaluate, save.

    Without options the result is the shipped checkpoint. Every stage can be stopped and goes on where it stopped.
    """
    from mrp_hf.demo.backbone import BackboneRecipe
    from mrp_hf.demo.build import HeadRecipe, build_demo_checkpoint

    head_settings: dict[str, Any] = {
        "steps": head_steps,
        "num_mrp_layers": head_layers,
        "learning_rate": head_learning_rate,
    }
    build_demo_checkpoint(
        output,
        work,
        backbone=backbone,
        backbone_recipe=BackboneRecipe() if backbone_steps is None else BackboneRecipe(cycles=(backbone_steps,)),
        head_recipe=HeadRecipe(**{name: value for name, value in head_settings.items() if value is not None}),
    )
    typer.echo(f"The checkpoint is in {output}: try `mrp-hf demo --checkpoint {output}`.")
