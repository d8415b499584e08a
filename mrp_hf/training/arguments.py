"""`MRPTrainingArguments`: those of transformers, with the published recipe as defaults, and the objective's own."""

from dataclasses import dataclass, field

from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

# Settings of `TrainingArguments` that the objective does not go with: name, the value that is fine, why.
_UNSUPPORTED = (
    ("activation_checkpointing", False, "the head's steps share one cache, which recomputing would write twice"),
    ("torch_compile", False, "the trainer does not call the model's `forward`"),
    ("use_liger_kernel", False, "the backbone must stay as it was loaded"),
    ("label_smoothing_factor", 0.0, "the targets are the backbone's distributions"),
    ("neftune_noise_alpha", None, "the backbone takes no noise"),
    ("average_tokens_across_devices", True, "the loss is divided by the answer tokens of all processes"),
)


@dataclass
class MRPTrainingArguments(TrainingArguments):
    """Arguments of `MRPTrainer`.

    The defaults are the published recipe (arXiv 2605.18817): AdamW, learning rate 1e-3 on a cosine with a floor, one
    epoch, one lookahead step, one token revealed per block. There the global batch was 16 sequences of 4,096 tokens.

    Args:
        num_lookahead_steps (`int`, *optional*, defaults to 1):
            K, the head steps that are chained and trained together.
        reveal_min, reveal_max (`int`, *optional*, defaults to 1):
            How many true tokens a step reveals in a block: uniform between the two.
        noise_seed (`int`, *optional*):
            Seed of masks and reveals; `seed` by default.

    Other defaults that differ from `TrainingArguments`: `learning_rate` 1e-3, `lr_scheduler_type`
    `"cosine_with_min_lr"` down to a tenth of it, `num_train_epochs` 1, `logging_steps` 50.

    Raises:
        ValueError: for a value that cannot work or a setting that the objective does not go with.
    """

    num_lookahead_steps: int = field(default=1, metadata={"help": "K, the head steps that are trained together."})
    reveal_min: int = field(default=1, metadata={"help": "Fewest true tokens that a step reveals in a block."})
    reveal_max: int = field(default=1, metadata={"help": "Most true tokens that a step reveals in a block."})
    noise_seed: int | None = field(default=None, metadata={"help": "Seed of masks and reveals; `seed` by default."})

    learning_rate: float = field(default=1e-3, metadata={"help": "The initial learning rate for AdamW."})
    lr_scheduler_type: SchedulerType | str = field(
        default="cosine_with_min_lr", metadata={"help": "The learning rate schedule."}
    )
    num_train_epochs: float = field(default=1.0, metadata={"help": "Total number of training epochs to perform."})
    logging_steps: float = field(default=50, metadata={"help": "Log every so many update steps."})

    def __post_init__(self) -> None:
        if self.lr_scheduler_type == SchedulerType.COSINE_WITH_MIN_LR and self.lr_scheduler_kwargs is None:
            self.lr_scheduler_kwargs = {"min_lr_rate": 0.1}
        super().__post_init__()
        if self.noise_seed is None:
            self.noise_seed = self.seed
        for name, least in (("num_lookahead_steps", 1), ("reveal_min", 1), ("reveal_max", 1), ("noise_seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}.")
        if self.reveal_min > self.reveal_max:
            raise ValueError(f"`reveal_min` is {self.reveal_min} and `reveal_max` {self.reveal_max}: raise the second.")
        for name, fine, reason in _UNSUPPORTED:
            if getattr(self, name) != fine:
                raise ValueError(f"`{name}={getattr(self, name)!r}` is not supported ({reason}): leave it at {fine!r}.")
