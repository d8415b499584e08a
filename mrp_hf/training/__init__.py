"""Training of the residual head: noise, teacher pass, objective and `MRPTrainer`."""

from mrp_hf.training.arguments import MRPTrainingArguments
from mrp_hf.training.collator import DataCollatorForMRP
from mrp_hf.training.trainer import MRPTrainer

__all__ = ["DataCollatorForMRP", "MRPTrainer", "MRPTrainingArguments"]
