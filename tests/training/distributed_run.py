"""The run of `test_distributed.py`: one or several processes, the same global batches."""

import os
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training import MRPTrainer, MRPTrainingArguments

GLOBAL_BATCH = 4


def run(folder: str, processes: int) -> tuple[dict[str, Tensor], list[dict[str, float]], MRPTrainer]:
    """Train 3 updates, evaluate on 7 items (no multiple of anything); the head's weights and the logs."""
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
    )
    model = MRPForDiffusionLM.from_backbone(
        Qwen3ForCausalLM(config), num_mrp_layers=1, mask_token_id=63, block_length=4
    )
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 60, (24, 20), generator=generator).tolist()
    items = [{"input_ids": row[: 4 + number % 15], "labels": row[: 4 + number % 15]} for number, row in enumerate(rows)]
    args = MRPTrainingArguments(
        output_dir=folder,
        max_steps=3,
        per_device_train_batch_size=GLOBAL_BATCH // processes,
        per_device_eval_batch_size=GLOBAL_BATCH // processes,
        gradient_accumulation_steps=2,
        train_sampling_strategy="sequential",
        num_lookahead_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        logging_steps=1,
        save_steps=2,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = MRPTrainer(model, args, train_dataset=items, eval_dataset=items[:7])
    trainer.train()
    return model.mrp_head.state_dict(), trainer.state.log_history, trainer


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    weights, logs, trainer = run(str(folder), processes=2)
    assert trainer.accelerator.num_processes == 2
    torch.save({"weights": weights, "logs": logs}, folder / f"rank{trainer.args.process_index}.pt")
    # Everything is written. Tearing gloo down aborts now and then ("terminate called without an active exception"),
    # which would say nothing about the run: so the processes wait for each other and leave without it.
    torch.distributed.barrier()
    os._exit(0)
