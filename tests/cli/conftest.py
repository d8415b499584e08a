from pathlib import Path

import pytest

from mrp_hf.demo.tokenizer import build_tokenizer
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM


@pytest.fixture(scope="session")
def backbone_folder(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny demo model's backbone as a folder of its own; it says neither mask id nor block length."""
    folder = tmp_path_factory.mktemp("backbone")
    MRPForDiffusionLM.from_pretrained(demo_folder).backbone.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder
