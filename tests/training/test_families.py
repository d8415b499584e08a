"""Training on backbones of every family: teacher and student equal passes over single rows, and a head learns."""

import pytest
import torch

from mrp_hf import MRPForDiffusionLM, MRPTrainer, MRPTrainingArguments
from mrp_hf.training.collator import DataCollatorForMRP
from mrp_hf.training.layout import build_layout
from mrp_hf.training.noise import draw_noise
from mrp_hf.training.objective import mrp_objective
from mrp_hf.training.teacher import run_student, run_teacher
from mrp_hf.training.trainer import noise_block_length

from ..families import EOS, MAKERS, MASK, exact_dtype, write_checkpoint, write_own_code
from .conftest import make_items

STEPS = 2


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    cache = {}

    def get(family):
        if family not in cache:
            torch.manual_seed(0)
            folder = write_checkpoint(family, 1, tmp_path_factory.mktemp("families"))
            cache[family] = MRPForDiffusionLM.from_backbone(folder, num_mrp_layers=1, dtype=exact_dtype(family))
        return cache[family]

    return get


def prepared(model, items):
    collator = DataCollatorForMRP(0, model.config.block_length or 1)
    batch = collator([item | {"sample_index": number} for number, item in items])
    noise = draw_noise(
        batch["input_ids"],
        batch["labels"] != -100,
        batch["sample_index"],
        seed=1,
        epoch=0,
        block_length=noise_block_length(model, batch["input_ids"].shape[1]),
        mask_token_id=MASK,
        num_lookahead_steps=STEPS,
        reveal_max=2,
    )
    return batch, noise


@torch.no_grad()
def full_pass(model, clean, noisy, run):
    """Aligned hidden states of a noisy row (n, hidden), from `run(ids, places, mask)` over [clean | noisy] or noisy."""
    length, block_length = len(noisy), model.config.block_length
    places = torch.arange(length)
    if model.config.attention_pattern == "bidirectional":
        hidden = run(noisy, places, torch.zeros(length, length, dtype=model.dtype))
        before = torch.cat([hidden[:1], hidden[:-1]])
    else:
        blocks = places // block_length
        earlier, own = blocks[:, None] > blocks[None, :], blocks[:, None] == blocks[None, :]
        visible = torch.cat(
            [torch.cat([earlier | own, torch.zeros_like(own)], dim=1), torch.cat([earlier, own], dim=1)]
        )
        mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, torch.finfo(torch.float32).min)
        both = run(torch.cat([clean, noisy]), places.repeat(2), mask)
        of_clean, hidden = both[:length], both[length:]
        before = torch.cat([hidden[:1], hidden[:-1]])
        starts = places[(places % block_length == 0) & (places > 0)]
        before[starts] = of_clean[starts - 1]
    return before if model.config.logit_shift else hidden


@pytest.mark.parametrize("family", MAKERS)
def test_teacher_equals_passes_over_single_rows(models, family):
    model = models(family)
    items = list(enumerate(make_items(12, vocab_size=EOS, longest=30)))
    batch, noise = prepared(model, items)
    bidirectional = model.config.attention_pattern == "bidirectional"
    layout = build_layout(
        batch["lengths"], noise.masked[1], None if bidirectional else model.config.block_length, model.dtype
    )
    noisy_ids = layout.gather(noise.states)
    teacher = run_teacher(model, layout, batch["input_ids"], noisy_ids)
    supervised = layout.gather(noise.masked[1])

    def run(ids, places, mask):
        return model.backbone_hidden_states(ids[None], places[None], mask[None, None])[0]

    tolerance = 1e-8 if model.dtype == torch.float64 else 1e-4
    compared = 0
    for row, length in enumerate(batch["lengths"].tolist()):
        at = supervised[row].nonzero().squeeze(-1)
        for k, found in enumerate(teacher.noisy):
            wanted = full_pass(model, batch["input_ids"][row, :length], noise.states[k, row, :length], run)
            torch.testing.assert_close(found[row, at], wanted[layout.columns[row, at]], atol=tolerance, rtol=0)
            compared += len(at)
    assert compared > 20

    # The first lookahead step, likewise; the head over the clean copy reads aligned hidden states.
    accumulator = next(run_student(model, layout, batch["input_ids"], noisy_ids, teacher))
    assert accumulator.requires_grad
    if bidirectional:
        length = int(batch["lengths"][0])
        places = torch.arange(length)[None]
        ids = noise.states[1, :1, :length]
        alone = model.mrp_step(
            ids, teacher.noisy[0][:1, :length], places, torch.zeros(1, 1, length, length, dtype=model.dtype)
        )
        torch.testing.assert_close(accumulator[0, :length], alone[0], atol=tolerance, rtol=0)


@pytest.mark.parametrize("family", ["llada", "Dream", "Fast_dLLM_Qwen", "modernbert"])
def test_loss_of_a_row_does_not_depend_on_its_batch(models, family):
    model = models(family)
    items = list(enumerate(make_items(4, vocab_size=EOS, longest=20)))
    batch, noise = prepared(model, items)
    together = mrp_objective(model, batch["input_ids"], batch["lengths"], noise)
    for row, item in enumerate(items):
        one, own_noise = prepared(model, [item])
        alone = mrp_objective(model, one["input_ids"], one["lengths"], own_noise)
        torch.testing.assert_close(alone.loss[0], together.loss[row], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(alone.sums[0], together.sums[row], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llada", "Dream", "Fast_dLLM_Qwen", "sdar_moe", "bert"])
def test_a_head_learns(models, family, tmp_path):
    torch.manual_seed(0)
    model = MRPForDiffusionLM.from_backbone(
        models(family).backbone.float(), num_mrp_layers=1, **settings_of(models(family))
    )
    trainer = MRPTrainer(
        model=model,
        args=MRPTrainingArguments(
            output_dir=str(tmp_path),
            max_steps=30,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            report_to="none",
            save_strategy="no",
            seed=0,
        ),
        train_dataset=make_items(4, vocab_size=EOS, longest=20),
        eval_dataset=make_items(4, vocab_size=EOS, longest=20),
    )
    before = trainer.evaluate()["eval_residual_explained_1"]
    trainer.train()
    assert trainer.evaluate()["eval_residual_explained_1"] > before + 0.05


def settings_of(model):
    names = ("mask_token_id", "block_length", "attention_pattern", "logit_shift", "logit_scale")
    return {name: getattr(model.config, name) for name in names}


def test_a_block_causal_backbone_without_a_cache_is_refused(tmp_path):
    model = MRPForDiffusionLM.from_backbone(
        write_own_code(tmp_path / "strange"),
        trust_remote_code=True,
        attention_pattern="block_causal",
        logit_shift=False,
        mask_token_id=MASK,
        block_length=4,
    )
    arguments = MRPTrainingArguments(output_dir=str(tmp_path), report_to="none")
    with pytest.raises(ValueError, match="takes no cache"):
        MRPTrainer(model=model, args=arguments, train_dataset=make_items(2, vocab_size=EOS))
