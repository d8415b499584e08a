"""`mrp-hf refresh`: bring the Python files of a saved checkpoint up to date."""

from pathlib import Path
from typing import Annotated

import typer


def refresh(folder: Annotated[Path, typer.Argument(help="Folder of a saved MRP checkpoint.")]) -> None:
    """Replace the code that travels with a checkpoint by this version's; its weights are not touched."""
    from mrp_hf.modeling.checkpoint_mrp import refresh_code

    refresh_code(folder)
    typer.echo(f"The code in {folder} is up to date.")
