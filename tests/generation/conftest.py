from collections.abc import Callable
from typing import Any

import pytest
import torch

from mrp_hf import MRPForDiffusionLM

from .helpers import VOCABULARY


@pytest.fixture(scope="session")
def small_model(tiny_model) -> Callable[..., MRPForDiffusionLM]:
    """Makes models for exact comparisons: float64, where rounding does not decide, and confidences of all sizes."""

    def make(dtype: torch.dtype = torch.float64, **settings: Any) -> MRPForDiffusionLM:
        shape = {"vocab_size": VOCABULARY, "hidden_size": 16, "initializer_range": 0.5}
        return tiny_model(**shape | settings).to(dtype)

    return make
