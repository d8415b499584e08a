"""What a user of `transformers.Trainer` relies on, with the objective's own numbers."""

import json
from pathlib import Path

import datasets
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import IterableDataset
from transformers import TrainerCallback, TrainingArguments, default_data_collator

from mrp_hf import MRPForDiffusionLM
from mrp_hf.demo.tokenizer import build_tokenizer
from mrp_hf.training import DataCollatorForMRP, MRPTrainer, MRPTrainingArguments
from mrp_hf.training.checkpoints import HEAD_WEIGHTS_NAME


def arguments(folder, **fields):
    settings = {
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "num_lookahead_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return MRPTrainingArguments(output_dir=str(folder), use_cpu=True, **(settings | fields))


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def batch_of(rows, numbers, block_length=4):
    features = [rows[number] | {"sample_index": number} for number in numbers]
    return DataCollatorForMRP(62, block_length)(features)


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_only_the_head_learns(tiny_model, items, tmp_path):
    model = tiny_model()
    before = weights(model)
    trainer = MRPTrainer(model, arguments(tmp_path), train_dataset=items(16))
    trainer.train()
    optimised = {id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]}
    assert optimised == {id(parameter) for parameter in model.mrp_head.parameters()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (not name.startswith("mrp_head.")), name
    assert model.config.mrp_head_trained


def test_norms_do_not_decay(tiny_model, items, tmp_path):
    trainer = MRPTrainer(tiny_model(), arguments(tmp_path, weight_decay=0.1), train_dataset=items(4))
    trainer.create_optimizer()
    decayed, others = trainer.optimizer.param_groups
    assert {parameter.dim() for parameter in decayed["params"]} == {2}
    assert {parameter.dim() for parameter in others["params"]} == {1}


def test_training_explains_part_of_the_residual(tiny_model, items, tmp_path):
    model = tiny_model(mrp_initializer_range=0.02)
    args = arguments(tmp_path, max_steps=60, learning_rate=5e-3, per_device_train_batch_size=8, logging_steps=60)
    rows = items(16)
    trainer = MRPTrainer(model, args, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    for k in (1, 2):
        assert after[f"eval_kl_before_{k}"] == pytest.approx(before[f"eval_kl_before_{k}"])
        assert after[f"eval_residual_explained_{k}"] > before[f"eval_residual_explained_{k}"]
    assert after["eval_loss"] < 0.8 * before["eval_loss"]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_first_update_is_that_of_the_reference(tiny_model, items, draw, reference, tmp_path, accumulation):
    """Batches of unequal length, accumulated: the loss is divided by the answer tokens of all of them."""
    rows = items(3 * accumulation)
    model = tiny_model()
    args = arguments(
        tmp_path,
        max_steps=1,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=accumulation,
        train_sampling_strategy="sequential",
        optim="sgd",
        lr_scheduler_type="constant",
        learning_rate=1.0,
        max_grad_norm=0.0,
        seed=3,
    )
    start = {name: tensor.clone() for name, tensor in model.mrp_head.named_parameters()}
    trainer = MRPTrainer(model, args, train_dataset=rows)
    trainer.train()

    other = tiny_model()
    batch = batch_of(rows, range(len(rows)))
    terms = reference(other, batch, draw(other, batch, steps=2, seed=3))
    loss = torch.stack([row.loss for row in terms]).sum() / (batch["labels"] != -100).sum()
    loss.backward()
    for name, parameter in other.mrp_head.named_parameters():
        step = start[name] - model.mrp_head.get_parameter(name)
        torch.testing.assert_close(step, parameter.grad, rtol=1e-3, atol=1e-5)
    assert logged(trainer, "loss")[0] == pytest.approx(loss.item(), rel=1e-4)
    sums = torch.tensor([row.sums for row in terms]).sum(0)
    for k in (1, 2):
        count, before, after = sums[k - 1].tolist()
        assert logged(trainer, f"kl_before_{k}")[0] == pytest.approx(before / count, rel=1e-4)
        assert logged(trainer, f"kl_after_{k}")[0] == pytest.approx(after / count, rel=1e-4)
        assert logged(trainer, f"residual_explained_{k}")[0] == pytest.approx(1 - after / before, abs=1e-3)


def test_training_metrics_cover_the_logging_window(tiny_model, items, tmp_path):
    rows = items(12)
    common = {"max_steps": 4, "learning_rate": 1e-12, "train_sampling_strategy": "sequential"}
    each = MRPTrainer(tiny_model(), arguments(tmp_path, **common), train_dataset=rows)
    each.train()
    window = MRPTrainer(tiny_model(), arguments(tmp_path, logging_steps=2, **common), train_dataset=rows)
    window.train()
    first, second = logged(each, "kl_before_1")[:2]
    assert len(logged(window, "kl_before_1")) == 2
    assert min(first, second) < logged(window, "kl_before_1")[0] < max(first, second)


def test_each_epoch_draws_new_noise(tiny_model, items, tmp_path):
    rows = items(4)
    args = arguments(tmp_path, max_steps=-1, num_train_epochs=3, learning_rate=1e-12)
    trainer = MRPTrainer(tiny_model(), args, train_dataset=rows)
    trainer.train()
    assert len(set(logged(trainer, "kl_before_1"))) == 3


def test_evaluation_is_the_reference_and_the_same_every_time(tiny_model, items, draw, reference, tmp_path):
    rows = items(7)
    model = tiny_model()
    args = arguments(tmp_path, per_device_eval_batch_size=3, seed=3)
    trainer = MRPTrainer(model, args, eval_dataset=rows)
    metrics = trainer.evaluate()
    batch = batch_of(rows, range(7))
    with torch.no_grad():
        terms = reference(model, batch, draw(model, batch, steps=2, seed=3, epoch=-1))
    loss = sum(row.loss.item() for row in terms) / int((batch["labels"] != -100).sum())
    assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-4)
    sums = torch.tensor([row.sums for row in terms]).sum(0)
    for k in (1, 2):
        count, before, after = sums[k - 1].tolist()
        assert metrics[f"eval_kl_before_{k}"] == pytest.approx(before / count, rel=1e-4)
        assert metrics[f"eval_kl_after_{k}"] == pytest.approx(after / count, rel=1e-4)
        assert metrics[f"eval_residual_explained_{k}"] == pytest.approx(1 - after / before, abs=1e-3)
    again = MRPTrainer(model, arguments(tmp_path, per_device_eval_batch_size=7, seed=3), eval_dataset=rows).evaluate()
    for name in ("eval_loss", "eval_kl_before_1", "eval_kl_after_2"):
        assert again[name] == pytest.approx(metrics[name], rel=1e-5)


def test_named_evaluation_sets_and_predict(tiny_model, items, tmp_path):
    sets = {"short": items(3, longest=8), "long": items(3, seed=1)}
    trainer = MRPTrainer(tiny_model(), arguments(tmp_path), eval_dataset=sets)
    metrics = trainer.evaluate()
    assert metrics["eval_short_kl_before_1"] != metrics["eval_long_kl_before_1"]
    output = trainer.predict(sets["short"])
    assert output.predictions is None
    assert output.metrics["test_kl_before_1"] == pytest.approx(metrics["eval_short_kl_before_1"])


def test_datasets_with_more_columns_and_groups_by_length(tiny_model, items, tmp_path):
    rows = [item | {"text": "x", "attention_mask": [1] * len(item["input_ids"])} for item in items(12)]
    losses = []
    table = datasets.Dataset.from_list(rows)
    for dataset, workers in ((rows, 0), (table, 0), (table.with_format("torch"), 0), (rows, 2)):
        args = arguments(tmp_path, train_sampling_strategy="group_by_length", dataloader_num_workers=workers)
        trainer = MRPTrainer(tiny_model(), args, train_dataset=dataset)
        trainer.train()
        losses.append(logged(trainer, "loss"))
    assert losses[0] == losses[1] == losses[2] == losses[3]


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def test_iterable_datasets_number_their_items(tiny_model, items, tmp_path):
    rows = items(12)
    numbered = [item | {"sample_index": number} for number, item in enumerate(rows)]
    streamed = MRPTrainer(tiny_model(), arguments(tmp_path), train_dataset=Stream(numbered))
    streamed.train()
    args = arguments(tmp_path, train_sampling_strategy="sequential")
    mapped = MRPTrainer(tiny_model(), args, train_dataset=rows)
    mapped.train()
    assert logged(streamed, "loss") == logged(mapped, "loss")
    with pytest.raises(ValueError, match="need a `sample_index`"):
        MRPTrainer(tiny_model(), arguments(tmp_path), train_dataset=Stream(rows)).train()


@pytest.mark.parametrize("prediction", ["residual", "direct"])
def test_the_final_model_loads_and_generates(tiny_model, items, tmp_path, prediction):
    tokenizer = build_tokenizer()
    model = tiny_model(vocab_size=128, mrp_prediction=prediction)
    trainer = MRPTrainer(model, arguments(tmp_path), train_dataset=items(8), processing_class=tokenizer)
    trainer.train()
    trainer.save_model(tmp_path / "final")
    loaded = MRPForDiffusionLM.from_pretrained(tmp_path / "final")
    assert loaded.config.mrp_head_trained
    assert loaded.config.mrp_prediction == prediction
    saved = weights(loaded)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
    assert type(tokenizer).from_pretrained(tmp_path / "final").mask_token == tokenizer.mask_token
    prompt = torch.tensor([[3, 4, 5]])
    produced = [
        one.eval().generate(prompt, mrp_mode="speculative", mrp_drafter="head", max_new_tokens=8)
        for one in (model, loaded)
    ]
    assert torch.equal(produced[0], produced[1])


def test_half_precision_heads_train_in_float32(tiny_model, items, tmp_path):
    rows = items(8)
    model = tiny_model()
    for parameter in model.parameters():  # as from_pretrained does: buffers stay in float32
        parameter.data = parameter.data.bfloat16()
    args = arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=1, learning_rate=1e-6)
    trainer = MRPTrainer(model, args, train_dataset=rows, eval_dataset=rows)
    first = trainer.evaluate()["eval_kl_after_1"]
    start = weights(model)

    seen = []
    trainer.add_callback(Watch(lambda: seen.append(model.mrp_head.eh_proj.weight.dtype)))
    trainer.train()
    assert seen == [torch.float32] * 2
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.bfloat16}
    assert model.mrp_head.rotary_emb.inv_freq.dtype == torch.float32
    assert all(state["exp_avg"].dtype == torch.float32 for state in trainer.optimizer.state.values())
    assert trainer.evaluate()["eval_kl_after_1"] == pytest.approx(first, rel=0.05)
    # The updates are far below bfloat16's resolution: float32 keeps them, in the checkpoint.
    saved = saved_head(tmp_path / "checkpoint-2")
    assert any(not torch.equal(saved[name], start[f"mrp_head.{name}"].float()) for name in saved)


def test_mixed_precision(tiny_model, items, tmp_path):
    rows = items(8)
    trainer = MRPTrainer(tiny_model(), arguments(tmp_path, bf16=True), train_dataset=rows, eval_dataset=rows)
    trainer.train()
    exact = MRPTrainer(tiny_model(), arguments(tmp_path), train_dataset=rows, eval_dataset=rows)
    exact.train()
    assert logged(trainer, "loss")[0] != logged(exact, "loss")[0]
    assert logged(trainer, "loss") == pytest.approx(logged(exact, "loss"), rel=0.1)


class Watch(TrainerCallback):
    def __init__(self, look):
        self.look = look

    def on_step_end(self, args, state, control, **kwargs):
        self.look()


def saved_head(folder: Path):
    return load_file(folder / HEAD_WEIGHTS_NAME)


def test_best_head_is_loaded_at_the_end(tiny_model, items, tmp_path):
    rows = items(8)
    model = tiny_model()
    args = arguments(
        tmp_path,
        max_steps=3,
        learning_rate=10.0,  # every step makes it worse
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_kl_after_1",
        greater_is_better=False,
    )
    trainer = MRPTrainer(model, args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    values = logged(trainer, "eval_kl_after_1")
    best = values.index(min(values)) + 1
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert sorted(path.name for path in tmp_path.glob("*checkpoint-*")) == [f"checkpoint-{best}"]
    saved = saved_head(tmp_path / f"checkpoint-{best}")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.mrp_head.state_dict().items())
    state = json.loads((tmp_path / f"checkpoint-{best}" / "trainer_state.json").read_text())
    assert state["best_global_step"] == best


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: setattr(model, "mrp_head", None), "has no head"),
        (lambda model: model.backbone.requires_grad_(True), r"requires gradients: call .*requires_grad_\(False\)"),
        (lambda model: model.mrp_head.eh_proj.requires_grad_(False), "part of the head is frozen"),
    ],
)
def test_refuses_models_that_cannot_be_trained(tiny_model, items, tmp_path, change, message):
    model = tiny_model()
    change(model)
    with pytest.raises(ValueError, match=message):
        MRPTrainer(model, arguments(tmp_path), train_dataset=items(2))


def test_a_run_without_an_update_leaves_the_head_untrained(tiny_model, items, tmp_path):
    model = tiny_model()
    args = MRPTrainingArguments(output_dir=str(tmp_path), num_train_epochs=0, report_to="none")
    MRPTrainer(model, args, train_dataset=items(4)).train()
    assert not model.config.mrp_head_trained


@pytest.mark.parametrize("settings", [{"num_lookahead_steps": 4}, {"reveal_min": 4, "reveal_max": 4}])
def test_refuses_steps_that_leave_nothing_masked(tiny_model, items, tmp_path, settings):
    args = MRPTrainingArguments(output_dir=str(tmp_path), report_to="none", **settings)
    with pytest.raises(ValueError, match="leaves nothing masked in a block of 4"):
        MRPTrainer(tiny_model(block_length=4), args, train_dataset=items(4))


def test_refuses_another_collator(tiny_model, items, tmp_path):
    args = MRPTrainingArguments(output_dir=str(tmp_path), report_to="none")
    with pytest.raises(ValueError, match="`data_collator` is a function: leave it out"):
        MRPTrainer(tiny_model(), args, train_dataset=items(4), data_collator=default_data_collator)


def test_refuses_wrong_inputs(tiny_model, items, tmp_path):
    model = tiny_model(max_position_embeddings=16)
    with pytest.raises(ValueError, match="`train_dataset` is empty"):
        MRPTrainer(model, arguments(tmp_path), train_dataset=[])
    with pytest.raises(ValueError, match="`eval_dataset` is empty"):
        MRPTrainer(model, arguments(tmp_path), eval_dataset=datasets.Dataset.from_list([]))
    with pytest.raises(ValueError, match="`args` is a TrainingArguments: pass `MRPTrainingArguments`"):
        MRPTrainer(model, TrainingArguments(output_dir=str(tmp_path)), train_dataset=items(2))
    with pytest.raises(ValueError, match="`model` is a Qwen3ForCausalLM: build one with"):
        MRPTrainer(model.backbone, arguments(tmp_path), train_dataset=items(2))
    long = {"input_ids": [1] * 17, "labels": [1] * 17}
    with pytest.raises(ValueError, match=r"train_dataset\[0\] has 17 tokens, the model takes 16"):
        MRPTrainer(model, arguments(tmp_path), train_dataset=[long])
    foreign = {"input_ids": [1, 64], "labels": [1, 64]}
    with pytest.raises(ValueError, match=r"eval_dataset\[0\] has `input_ids` from 1 to 64"):
        MRPTrainer(model, arguments(tmp_path), eval_dataset=[foreign])
    prompt = {"input_ids": [1, 2], "labels": [-100, -100]}
    with pytest.raises(ValueError, match=r"\(sample 0\): `labels` are all -100"):
        MRPTrainer(model, arguments(tmp_path), eval_dataset={"good": items(2, longest=8), "bad": [prompt]})
    with pytest.raises(ValueError, match="`data_collator` has block_length=6: it must be a multiple of the model's, 4"):
        MRPTrainer(model, arguments(tmp_path), items(2), data_collator=DataCollatorForMRP(0, 6))
    with pytest.raises(ValueError, match="`data_collator` has pad_token_id=64"):
        MRPTrainer(model, arguments(tmp_path), items(2), data_collator=DataCollatorForMRP(64, 4))
