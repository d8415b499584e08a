"""The figures that building a demo checkpoint leaves beside its weights."""

import json
from pathlib import Path
from typing import Any

FILE_NAME = "figures.json"


def read_figures(folder: str | Path) -> dict[str, Any] | None:
    """The figures in a checkpoint's folder; `None` where it has none."""
    path = Path(folder) / FILE_NAME
    return json.loads(path.read_text()) if path.exists() else None


def write_figures(folder: str | Path, figures: dict[str, Any]) -> None:
    (Path(folder) / FILE_NAME).write_text(json.dumps(figures, indent=1) + "\n")
