"""Checkpoint formats that a model is not saved in by itself: the published layout, and conversion between all."""

from mrp_hf.checkpoints.conversion import convert
from mrp_hf.checkpoints.published import export_published

__all__ = ["convert", "export_published"]
