"""Decoding of whole problem sets, and the demo task's scores."""

from mrp_hf.evaluation.decoding import Decoded, decode, decode_batch
from mrp_hf.evaluation.metrics import ExactAnswer, StepValidity

__all__ = ["Decoded", "ExactAnswer", "StepValidity", "decode", "decode_batch"]
