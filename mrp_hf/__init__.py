"""Multi-token Residual Prediction for diffusion language models (Xu et al. 2026, arXiv 2605.18817).

Importing the package registers its model with the Auto classes of transformers, so that MRP checkpoints load without
`trust_remote_code`.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from mrp_hf.generation.configuration_generation_mrp import MRPGenerationConfig
from mrp_hf.generation.generation_mrp import MRPGenerationMixin
from mrp_hf.modeling.configuration_mrp import MRPConfig
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
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
