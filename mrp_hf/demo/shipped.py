"""The checkpoint that comes with the package, and the figures that building it left beside the weights."""

import json
from pathlib import Path
from typing import Any

FIGURES_FILE = "figures.json"


def shipped_checkpoint() -> Path:
    """The folder of the demo checkpoint.

    Raises:
        ValueError: if this installation has none.
    """
    folder = Path(__file__).with_name("checkpoint")
    if not (folder / "config.json").exists():
        raise ValueError(f"there is no demo checkpoint in {folder}: make one with `mrp-hf build-demo {folder}`")
    return folder


def read_figures(folder: str | Path) -> dict[str, Any] | None:
    """The figures in a checkpoint's folder; `None` where it has none."""
    path = Path(folder) / FIGURES_FILE
    return json.loads(path.read_text()) if path.exists() else None


def write_figures(folder: str | Path, figures: dict[str, Any]) -> None:
    (Path(folder) / FIGURES_FILE).write_text(json.dumps(figures, indent=1) + "\n")
