"""Multi-token Residual Prediction for diffusion language models (Xu et al. 2026, arXiv 2605.18817).

Importing the package registers its model with the Auto classes of transformers, so that MRP checkpoints load without
`trust_remote_code`.
"""

from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from mrp_hf.generation.configuration_generation_mrp import MRPGenerationConfig
from mrp_hf.generation.generation_mrp import MRPGenerationMixin
from mrp_hf.modeling.configuration_mrp import MRPConfig
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

if TYPE_CHECKING:
    from mrp_hf.training import DataCollatorForMRP, MRPTrainer, MRPTrainingArguments

__all__ = [
    "DataCollatorForMRP",
    "MRPConfig",
    "MRPForDiffusionLM",
    "MRPGenerationConfig",
    "MRPGenerationMixin",
    "MRPTrainer",
    "MRPTrainingArguments",
]

AutoConfig.register("mrp", MRPConfig)
AutoModel.register(MRPConfig, MRPForDiffusionLM)
AutoModelForCausalLM.register(MRPConfig, MRPForDiffusionLM)


def __getattr__(name: str) -> Any:
    """The names of training, imported when they are first used: decoding needs no Trainer."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mrp_hf import training

    return getattr(training, name)
