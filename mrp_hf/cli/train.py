"""`mrp-hf train`: put a head on a backbone and train it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrp_hf.cli.options import (
    AttentionPattern,
    BlockLength,
    LogitShift,
    MaskTokenId,
    TrustRemoteCode,
    backbone_settings,
)

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from mrp_hf.demo.task import Split

DEMO_PROBLEMS = 16_000


def train(
    backbone: Annotated[str, typer.Argument(help="Folder or Hub name of a backbone; 'demo': the demo's.")],
    data: Annotated[
        str,
        typer.Argument(help="A .json or .jsonl file of records with prompt and answer, or messages; 'demo': its task."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the checkpoint.")],
    lookahead: Annotated[int, typer.Option("--lookahead", "-K", help="Lookahead steps trained together.")] = 1,
    reveal_max: Annotated[int, typer.Option(help="A step reveals 1 to this many tokens of a block.")] = 1,
    layers: Annotated[int, typer.Option(help="Decoder layers of the head.")] = 3,
    prediction: Annotated[str, typer.Option(help="'residual', or 'direct' for the ablation.")] = "residual",
    head_initialization: Annotated[
        str, typer.Option(help="'normal', or 'backbone' to copy its last layers.")
    ] = "normal",
    mask_token_id: MaskTokenId = None,
    block_length: BlockLength = None,
    attention_pattern: AttentionPattern = None,
    logit_shift: LogitShift = None,
    trust_remote_code: TrustRemoteCode = False,
    epochs: Annotated[float, typer.Option(min=0, help="Passes over the data.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Update steps; overrides --epochs.")] = -1,
    batch_size: Annotated[int, typer.Option(min=1, help="Records per step.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    warmup_steps: Annotated[int, typer.Option(min=0, help="Steps of linear warm-up.")] = 0,
    save_steps: Annotated[int, typer.Option(min=1, help="Steps between saved states.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the head, the order and the noise.")] = 0,
    eval_data: Annotated[str | None, typer.Option(help="As DATA: what to evaluate on at the end.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last saved state in --output.")] = False,
) -> None:
    """Put a fresh head on a frozen backbone, train it and save the checkpoint.

    DATA is encoded with the backbone's tokenizer and chat template; only answers are learned.
    """
    from transformers import set_seed

    from mrp_hf.cli.loading import load_backbone
    from mrp_hf.training import MRPTrainer, MRPTrainingArguments

    # Checked first, so that a wrong value ends before anything is loaded.
    arguments = MRPTrainingArguments(
        output_dir=str(output),
        num_lookahead_steps=lookahead,
        reveal_max=reveal_max,
        num_train_epochs=epochs,
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        save_steps=save_steps,
        save_total_limit=1,
        seed=seed,
        report_to="none",
    )
    set_seed(seed)
    model, tokenizer = load_backbone(
        backbone,
        num_mrp_layers=layers,
        head_initialization=head_initialization,
        mrp_prediction=prediction,
        **backbone_settings(mask_token_id, block_length, attention_pattern, logit_shift, trust_remote_code),
    )
    length = model.config.block_length or 1
    trainer = MRPTrainer(
        model=model,
        args=arguments,
        train_dataset=_dataset(data, tokenizer, length, "train"),
        eval_dataset=None if eval_data is None else _dataset(eval_data, tokenizer, length, "test"),
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    if eval_data is not None:
        for name, value in trainer.evaluate().items():
            if name.startswith("eval_residual_explained"):
                typer.echo(f"{name.removeprefix('eval_')}: {value:.3f}")
    typer.echo(f"The checkpoint is in {output}.")


def _dataset(data: str, tokenizer: "PreTrainedTokenizerBase", block_length: int, split: "Split") -> "datasets.Dataset":
    import datasets

    from mrp_hf.cli.data import read_records
    from mrp_hf.cli.loading import DEMO
    from mrp_hf.demo.task import problems
    from mrp_hf.training.conversations import Messages, encode_conversation

    if data == DEMO:
        count = DEMO_PROBLEMS if split == "train" else 512
        records: Iterator[tuple[str, Messages]] = (("demo task", p.conversation) for p in problems(split, count))
    else:
        records = read_records(Path(data))
    return datasets.Dataset.from_list(
        [encode_conversation(messages, tokenizer, block_length, where) for where, messages in records]
    )
