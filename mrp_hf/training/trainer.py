"""`MRPTrainer`: `transformers.Trainer` for the head of a frozen diffusion language model."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, TrainOutput, rotate_checkpoints

from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training.arguments import MRPTrainingArguments
from mrp_hf.training.checkpoints import find_checkpoint, load_head, save_head, staged_folder
from mrp_hf.training.collator import IGNORED, DataCollatorForMRP
from mrp_hf.training.examples import CheckedCollator, IndexedDataset, ReadableItems
from mrp_hf.training.metrics import lookahead_metrics
from mrp_hf.training.noise import EVALUATION_EPOCH, draw_noise
from mrp_hf.training.objective import ObjectiveOutput, mrp_objective
from mrp_hf.training.wrapped import call_wrapped


class MRPTrainer(Trainer):
    """Trains the residual head of an `MRPForDiffusionLM`; its backbone stays as it is.

    Args:
        model (`MRPForDiffusionLM`):
            A model with a head. Half-precision heads are trained in float32, under autocast, and cast back at the end.
        args (`MRPTrainingArguments`):
            The arguments.
        train_dataset, eval_dataset (*optional*):
            Items have `input_ids` and `labels`, -100 on the prompt and the input id on answer tokens. Iterable datasets
            also give each item a unique number as `sample_index`. Several evaluation sets may be given by name.
        data_collator (`DataCollatorForMRP`, *optional*):
            By default one for the model.
        processing_class (*optional*):
            The tokenizer, saved beside the model.
        callbacks, optimizers (*optional*):
            As in `Trainer`.

    Training logs and evaluation report, for each lookahead step k: `kl_before_k` = KL(B ‖ A), `kl_after_k` =
    KL(B ‖ A + C), both means over the positions that are still masked, and `residual_explained_k` = 1 - after / before.
    Evaluation draws the same noise every time. Checkpoints hold the head, the optimizer and the run's state;
    `save_model` writes the whole model for `from_pretrained`.

    Raises:
        ValueError: for a model without a head, a backbone that is not frozen, an empty dataset, or a setup that the
            trainer does not support.
    """

    model: MRPForDiffusionLM
    args: MRPTrainingArguments

    def __init__(
        self,
        model: MRPForDiffusionLM,
        args: MRPTrainingArguments,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        data_collator: DataCollatorForMRP | None = None,
        processing_class: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
    ):
        check_trainable(model, args)
        if data_collator is None:
            pad_token_id = model.generation_config.pad_token_id
            data_collator = DataCollatorForMRP(pad_token_id or 0, model.config.block_length)
        check_collator(data_collator, model)
        named = eval_dataset if isinstance(eval_dataset, Mapping) else {"eval_dataset": eval_dataset}
        named = {"train_dataset": train_dataset, **named}
        for name, dataset in named.items():
            if dataset is not None and not isinstance(dataset, IterableDataset):
                data_collator([numbered(dataset, model, name)[0]])  # a wrong dataset fails here, not in the run
        streams = any(isinstance(dataset, IterableDataset) for dataset in named.values())
        super().__init__(
            model=model,
            args=args,
            data_collator=CheckedCollator(data_collator, readable_items(model)) if streams else data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise NotImplementedError("FSDP and DeepSpeed are not supported yet: launch with DistributedDataParallel.")
        # Makes the Trainer count answer tokens over accumulated batches and processes, and pass the count on.
        self.model_accepts_loss_kwargs = True
        self._train_sums: Tensor | None = None
        self._eval_sums: list[Tensor] = []

    # Data

    def _get_dataloader(self, dataset: Any, description: str, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        if not isinstance(dataset, IterableDataset):
            name = "train_dataset" if kwargs.get("is_training") else "eval_dataset"
            dataset = numbered(dataset, self.model, name)
        return super()._get_dataloader(dataset, description, *args, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        # Annotated as None in the base class.
        self._signature_columns = ["input_ids", "labels", "sample_index"]  # type: ignore[assignment]

    # Objective

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch, divided by the answer tokens of all batches that share an update.

        Args:
            num_items_in_batch (`Tensor` or `int`, *optional*): their number over all processes; else this batch's.
        """
        output = self._objective(model, inputs, epoch=int(self.state.epoch or 0))
        sums = output.sums.sum(0)
        self._train_sums = sums if self._train_sums is None else self._train_sums + sums
        if num_items_in_batch is None:
            loss = output.loss.sum() / answer_tokens(inputs).sum()
        else:  # counted over all processes, while gradients are averaged over them
            loss = output.loss.sum() * self.accelerator.num_processes / num_items_in_batch
        return (loss, output) if return_outputs else loss

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, None, None]:
        """Adds one batch to the sums that `evaluation_loop` reports; no logits are kept."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            output = self._objective(self.model, inputs, epoch=EVALUATION_EPOCH)
        answers = answer_tokens(inputs)
        rows = torch.cat([output.loss[:, None], answers[:, None], output.sums.flatten(1)], dim=-1)
        rows = self.accelerator.gather_for_metrics(rows)  # leaves out rows that pad the last batch
        self._eval_sums.append(rows.cpu().double().sum(0))
        return output.loss.sum() / answers.sum(), None, None

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """As `Trainer.evaluation_loop`, with the loss per answer token of the whole set and the lookahead metrics."""
        self._eval_sums = []
        output = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
        if self._eval_sums:
            loss, answers, *sums = torch.stack(self._eval_sums).sum(0)
            assert output.metrics is not None
            metrics = lookahead_metrics(torch.stack(sums).view(-1, 3)) | {"loss": (loss / answers).item()}
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the lookahead metrics since the last log to the training loss."""
        if "loss" in logs and self._train_sums is not None:
            logs.update(lookahead_metrics(self.accelerator.reduce(self._train_sums, "sum")))
            self._train_sums = None
        super().log(logs, start_time)

    def _objective(self, model: nn.Module, inputs: dict[str, Tensor], epoch: int) -> ObjectiveOutput:
        if "sample_index" not in inputs:
            raise ValueError("items of an iterable dataset need a `sample_index`: add a unique integer to each.")
        with self._autocast():
            return call_wrapped(model, self.model, partial(self._noised_objective, epoch=epoch), inputs)

    def _noised_objective(self, inputs: dict[str, Tensor], epoch: int) -> ObjectiveOutput:
        assert self.args.noise_seed is not None
        noise = draw_noise(
            inputs["input_ids"],
            inputs["labels"] != IGNORED,
            inputs["sample_index"],
            seed=self.args.noise_seed,
            epoch=epoch,
            block_length=noise_block_length(self.model, inputs["input_ids"].shape[1]),
            mask_token_id=self.model.config.mask_token_id,
            num_lookahead_steps=self.args.num_lookahead_steps,
            reveal_min=self.args.reveal_min,
            reveal_max=self.args.reveal_max,
        )
        return mrp_objective(self.model, inputs["input_ids"], inputs["lengths"], noise)

    def _autocast(self) -> AbstractContextManager[None]:
        """What the arguments ask for, or the backbone's own precision while a head in float32 is trained on it."""
        if head_dtype(self.model) == self.model.dtype:
            return self.accelerator.autocast()
        return torch.autocast(self.args.device.type, dtype=self.model.dtype)

    # Optimisation

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As `Trainer.train`; `resume_from_checkpoint=True` takes the newest complete checkpoint of `output_dir`.

        Raises:
            ValueError: if there is no complete checkpoint to resume from.
        """
        if resume_from_checkpoint:
            assert self.args.output_dir is not None
            resume_from_checkpoint = find_checkpoint(self.args.output_dir, resume_from_checkpoint)
        with float32_head(self.model):
            output = super().train(resume_from_checkpoint, *args, **kwargs)
        if self.state.global_step > 0:
            self.model.config.mrp_head_trained = True
        return output

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Matrices decay, norms do not, whatever they are called."""
        return [name for name, parameter in model.named_parameters() if parameter.dim() > 1]

    # Checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.store_flos()
        run_dir = self._get_output_dir(trial)
        folder = os.path.join(run_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if self.state.best_global_step:
            best = os.path.join(run_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
            if best == folder or os.path.exists(best):
                self.state.best_model_checkpoint = best
        with staged_folder(folder, self.args.should_save, self.accelerator.wait_for_everyone) as stage:
            if self.args.should_save:
                save_head(self.model, stage)
                torch.save(self.args, stage / TRAINING_ARGS_NAME)
            if not self.args.save_only_model:
                self._save_optimizer_and_scheduler(str(stage))
                self._save_scaler(str(stage))
                self._save_rng_state(str(stage))
            if self.args.should_save:
                self._export_callback_states()
                self.state.save_to_json(str(stage / TRAINER_STATE_NAME))
        if self.args.push_to_hub:
            self._push_from_checkpoint(folder)
        if self.args.should_save:
            rotate_checkpoints(
                output_dir=run_dir,
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    def _export_callback_states(self) -> None:
        for callback in (*self.callback_handler.callbacks, self.control):
            if isinstance(callback, ExportableState):
                name, states = type(callback).__name__, cast(dict[str, Any], self.state.stateful_callbacks)
                if isinstance(states[name], list):
                    states[name].append(callback.state())
                else:
                    states[name] = callback.state()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_head(self.model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        assert self.state.best_model_checkpoint is not None
        load_head(self.model, self.state.best_model_checkpoint)


def check_trainable(model: MRPForDiffusionLM, args: MRPTrainingArguments) -> None:
    """Raise a `ValueError` where the head of `model` cannot be trained as `args` say."""
    if not isinstance(model, MRPForDiffusionLM):
        raise ValueError(f"`model` is a {type(model).__name__}: build one with `MRPForDiffusionLM.from_backbone(...)`.")
    if not isinstance(args, MRPTrainingArguments):
        raise ValueError(f"`args` is a {type(args).__name__}: pass `MRPTrainingArguments`.")
    if model.mrp_head is None:
        raise ValueError("`model` has no head (num_mrp_layers=0): build it with `num_mrp_layers` of at least 1.")
    if any(parameter.requires_grad for parameter in model.backbone.parameters()):
        raise ValueError("the backbone of `model` requires gradients: call `model.backbone.requires_grad_(False)`.")
    if not all(parameter.requires_grad for parameter in model.mrp_head.parameters()):
        raise ValueError("part of the head is frozen: call `model.mrp_head.requires_grad_(True)`.")
    if model.config.attention_pattern == "block_causal" and not model.config.backbone_caches:
        raise ValueError(
            "`model` has a block-causal backbone that takes no cache, but the noisy copies of a text read the cache of "
            "its clean copy: only backbones of the table can be trained on."
        )
    block_length = model.config.block_length
    if block_length is not None and args.num_lookahead_steps * args.reveal_min >= block_length:
        raise ValueError(
            f"`num_lookahead_steps` is {args.num_lookahead_steps} and `reveal_min` {args.reveal_min}, which leaves "
            f"nothing masked in a block of {block_length} at the last step: their product must be below it."
        )
    if args.n_gpu > 1:
        raise ValueError(
            f"one process sees {args.n_gpu} GPUs: start one process per GPU with `accelerate launch` or `torchrun`, "
            "or make one visible with CUDA_VISIBLE_DEVICES."
        )


def check_collator(collator: DataCollatorForMRP, model: MRPForDiffusionLM) -> None:
    """Raise a `ValueError` where the collator's batches are not the model's."""
    config = model.config
    if not isinstance(collator, DataCollatorForMRP):
        raise ValueError(
            f"`data_collator` is a {type(collator).__name__}: leave it out, or pass a `DataCollatorForMRP`."
        )
    if (collator.block_length or 1) % noise_block_length(model, 1) != 0:
        raise ValueError(
            f"`data_collator` has block_length={collator.block_length}: it must be a multiple of the model's, "
            f"{config.block_length}."
        )
    if collator.pad_token_id >= config.vocab_size:
        raise ValueError(
            f"`data_collator` has pad_token_id={collator.pad_token_id}, outside the model's vocabulary of "
            f"{config.vocab_size}: any id inside does, because padding is never seen."
        )


def noise_block_length(model: MRPForDiffusionLM, width: int) -> int:
    """Places that share a masking probability: a block's, or the whole row's (`width`) with a bidirectional backbone,
    whose blocks are the sampler's choice (as LLaDA was trained)."""
    return width if model.config.attention_pattern == "bidirectional" else model.config.block_length


def numbered(dataset: Any, model: MRPForDiffusionLM, name: str) -> IndexedDataset:
    """The dataset with numbered items, within the limits of the model."""
    return IndexedDataset(dataset, readable_items(model), name)


def readable_items(model: MRPForDiffusionLM) -> ReadableItems:
    return ReadableItems(model.config.vocab_size, model.config.max_position_embeddings)


def answer_tokens(inputs: dict[str, Tensor]) -> Tensor:
    """Answer tokens of each row."""
    return (inputs["labels"] != IGNORED).sum(-1)


def head_dtype(model: MRPForDiffusionLM) -> torch.dtype:
    """The precision of the head's weights."""
    assert model.mrp_head is not None
    return model.mrp_head.eh_proj.weight.dtype


@contextmanager
def float32_head(model: MRPForDiffusionLM) -> Iterator[None]:
    """Train a half-precision head in float32: small updates would be lost in its rounding."""
    dtype = head_dtype(model)
    _cast_head(model, torch.float32)
    try:
        yield
    finally:
        _cast_head(model, dtype)


def _cast_head(model: MRPForDiffusionLM, dtype: torch.dtype) -> None:
    assert model.mrp_head is not None
    for parameter in model.mrp_head.parameters():  # and not the buffers: rotary frequencies stay in float32
        parameter.data = parameter.data.to(dtype)
