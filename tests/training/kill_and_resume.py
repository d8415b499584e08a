"""The run of `test_resume.py`, also as a script that is killed while it saves its second checkpoint."""

import os
import signal
import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training import MRPTrainer, MRPTrainingArguments


class Killed(MRPTrainer):
    """Dies in the middle of writing checkpoint 6."""

    def _save_rng_state(self, output_dir: str) -> None:
        if self.state.global_step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_rng_state(output_dir)


def build_trainer(folder: str, kind: type[MRPTrainer] = MRPTrainer, **fields: object) -> MRPTrainer:
    """A run of 10 updates over 2.5 epochs, with dropout in the head, so that every generator matters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.3,
        attention_dropout=0.2,
    )
    model = MRPForDiffusionLM.from_backbone(
        Qwen3ForCausalLM(config), num_mrp_layers=1, mask_token_id=63, block_length=4
    )
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 60, (22, 20), generator=generator).tolist()
    items = [{"input_ids": row[: 10 + number % 8], "labels": row[: 10 + number % 8]} for number, row in enumerate(rows)]
    settings = {
        "max_steps": 10,
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "num_lookahead_steps": 2,
        "reveal_max": 3,
        "save_strategy": "steps",
        "save_steps": 3,
        "logging_steps": 3,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return kind(model, MRPTrainingArguments(output_dir=folder, **(settings | fields)), train_dataset=items)


if __name__ == "__main__":
    build_trainer(sys.argv[1], Killed).train()
