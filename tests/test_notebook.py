from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "quickstart.ipynb"


def test_the_quickstart_runs_and_its_kept_outputs_are_small() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kept = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert kept
    assert all(output.output_type == "stream" for output in kept)
    assert sum(len(output.text) for output in kept) < 5_000
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": NOTEBOOK.parent}}).execute()
