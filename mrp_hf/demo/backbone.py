"""Train the demo's block-diffusion backbone from scratch: a small Qwen3 with a block-causal mask.

Every step packs, for each problem, ``[clean | noisy | complementary noisy]`` into one row. The noisy copies hold the
blocks that contain answer tokens; each block draws its own masking probability, and the second copy masks exactly what
the first one shows, so that every answer token is learned once a step (block diffusion, arXiv 2503.09573; complementary
masks as in LLaDA-V and Fast-dLLM v2). The last block is filled with end-of-sequence tokens, and these are learned too,
because decoding denoises whole blocks.

A run is a pure function of its settings: the data of a step depend on the step's number alone, so a run that was
stopped goes on from its last saved state exactly as if it had not been.
"""

import itertools
import json
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from mrp_hf.demo.task import Problem, make_problem
from mrp_hf.generation.masks_mrp import CLEAN, PADDING, additive, block_causal_visibility, blocks_of
from mrp_hf.training.collator import IGNORED
from mrp_hf.training.conversations import encode_conversation

BLOCK_LENGTH = 16


@dataclass(frozen=True)
class BackboneRecipe:
    """Size and training of the demo backbone; the defaults made the shipped one.

    `cycles` are the steps of one or more rounds of training. Each warms up, stays, and decays to zero with optimizers
    that start afresh, so a backbone that is finished can be trained further (WSD-S, arXiv 2410.05192).
    """

    hidden_size: int = 128
    num_layers: int = 10
    intermediate_size: int = 256
    num_heads: int = 2
    head_dim: int = 64
    cycles: tuple[int, ...] = (2400, 1600)
    decay_from: float = 0.55
    warmup_steps: int = 100
    problems_per_step: int = 32
    learning_rate: float = 3e-3
    seed: int = 0

    @property
    def steps(self) -> int:
        return sum(self.cycles)

    @property
    def cycle_starts(self) -> tuple[int, ...]:
        return tuple(itertools.accumulate((0, *self.cycles[:-1])))

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, constant, linear to zero from `decay_from` of the cycle on."""
        start, length = max(pair for pair in zip(self.cycle_starts, self.cycles, strict=True) if pair[0] <= step)
        warmup = min(1.0, (step - start + 1) / self.warmup_steps)
        decay = min(1.0, (start + length - step) / ((1 - self.decay_from) * length))
        return self.learning_rate * warmup * decay


def backbone_config(recipe: BackboneRecipe, tokenizer: PreTrainedTokenizerBase) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.num_layers,
        intermediate_size=recipe.intermediate_size,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


def encode(problem: Problem, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """`input_ids` of question and answer, and `labels`: the same with -100 on the question.

    The answer ends with end-of-sequence tokens up to the end of its last block.
    """
    return encode_conversation(problem.conversation, tokenizer, BLOCK_LENGTH, "demo task")


@dataclass
class PackedBatch:
    """One training batch, all of shape (problems, packed length); `labels` is -100 where nothing is learned."""

    input_ids: Tensor
    position_ids: Tensor
    copies: Tensor
    blocks: Tensor
    labels: Tensor


def pack_noisy_copies(
    examples: list[dict[str, list[int]]], mask_token_id: int, generator: torch.Generator
) -> PackedBatch:
    """Lay out ``[clean | noisy | complementary noisy]`` for each example."""
    longest = max(len(example["input_ids"]) for example in examples)
    prompts = [example["labels"].count(IGNORED) for example in examples]
    starts = torch.tensor([prompt // BLOCK_LENGTH * BLOCK_LENGTH for prompt in prompts])
    lengths = torch.tensor([len(example["input_ids"]) for example in examples])
    window = int((lengths - starts).max())

    clean = torch.zeros(len(examples), longest, dtype=torch.long)
    labels = torch.full_like(clean, IGNORED)
    for row, example in enumerate(examples):
        clean[row, : lengths[row]] = torch.tensor(example["input_ids"])
        labels[row, : lengths[row]] = torch.tensor(example["labels"])
    clean_positions = torch.arange(longest).expand_as(clean)
    clean_copies = torch.where(clean_positions < lengths[:, None], CLEAN, PADDING)

    positions = starts[:, None] + torch.arange(window)
    real = positions < lengths[:, None]
    positions = positions.clamp(max=longest - 1)
    ids, targets = clean.gather(1, positions), labels.gather(1, positions)
    answer = real & (targets != IGNORED)
    probability = torch.rand(len(examples), window // BLOCK_LENGTH, generator=generator)
    masked = torch.rand(ids.shape, generator=generator) < probability.repeat_interleave(BLOCK_LENGTH, dim=1)

    columns = [(clean, clean_positions, clean_copies, torch.full_like(clean, IGNORED))]
    for copy, chosen in enumerate((masked & answer, ~masked & answer), start=1):
        columns.append(
            (
                ids.masked_fill(chosen, mask_token_id),
                positions,
                torch.where(real, copy, PADDING),
                targets.masked_fill(~chosen, IGNORED),
            )
        )
    input_ids, position_ids, copies, packed_labels = (torch.cat(part, dim=1) for part in zip(*columns, strict=True))
    blocks = blocks_of(copies, position_ids, BLOCK_LENGTH)
    return PackedBatch(input_ids, position_ids, copies, blocks, packed_labels)


def diffusion_loss(model: Qwen3ForCausalLM, batch: PackedBatch) -> Tensor:
    """Cross-entropy on masked tokens, each weighted by 1 / sqrt(number of masked tokens in its block and copy)."""
    visible = block_causal_visibility(batch.copies, batch.blocks)
    hidden = model.model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        attention_mask=additive(visible, model.dtype),
        use_cache=False,
    ).last_hidden_state
    learned = batch.labels != IGNORED
    logits = model.lm_head(hidden[learned])
    losses = F.cross_entropy(logits.float(), batch.labels[learned], reduction="none")
    blocks_per_copy = int(batch.blocks.max()) + 1
    rows = torch.arange(len(batch.labels))[:, None]
    group = (rows * 3 + batch.copies) * blocks_per_copy + batch.blocks
    masked_in_group = torch.bincount(group[learned])[group[learned]]
    weights = masked_in_group.float().rsqrt()
    return (losses * weights).sum() / weights.sum()


class Muon(torch.optim.Optimizer):
    """Momentum with an orthogonalised update (Jordan et al. 2024), scaled to AdamW's size (arXiv 2502.16982).

    As `torch.optim.Muon`, but the Newton-Schulz iteration runs in float32 and over all matrices of one shape at once:
    torch's runs in bfloat16, which a CPU without such units does 20 times slower (2.6 s a step here instead of 0.1 s).
    """

    COEFFICIENTS = (3.4445, -4.7750, 2.0315)

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                momentum = group["momentum"]
                buffers = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in params]
                gradients: list[Any] = [p.grad for p in params]
                torch._foreach_lerp_(buffers, gradients, 1 - momentum)
                update = torch.stack([g.lerp(b, momentum) for g, b in zip(gradients, buffers, strict=True)])
                update = self._orthogonalise(update) * (0.2 * max(shape) ** 0.5)
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(params, list(update.unbind()), alpha=-group["lr"])

    @classmethod
    def _orthogonalise(cls, matrices: Tensor) -> Tensor:
        a, b, c = cls.COEFFICIENTS
        tall = matrices.shape[-2] > matrices.shape[-1]
        x = matrices.mT if tall else matrices
        x = x / x.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
        for _ in range(5):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.mT if tall else x


def build_optimizers(model: Qwen3ForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, LM head and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        Muon(matrices, lr=learning_rate),
        torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


CHUNK = 16  # steps whose problems are drawn together and sorted by length, so that a batch holds little padding


def training_batches(
    recipe: BackboneRecipe, tokenizer: PreTrainedTokenizerBase, first_step: int
) -> Iterator[PackedBatch]:
    """The batches of `first_step` and all later steps."""
    size = recipe.problems_per_step
    for chunk in itertools.count(first_step // CHUNK):
        first = chunk * CHUNK * size
        problems = (make_problem("train", recipe.seed, index) for index in range(first, first + CHUNK * size))
        examples = sorted((encode(problem, tokenizer) for problem in problems), key=lambda e: len(e["input_ids"]))
        batches = [examples[start : start + size] for start in range(0, len(examples), size)]
        random.Random(chunk).shuffle(batches)
        for offset, batch in enumerate(batches):
            step = chunk * CHUNK + offset
            if step >= first_step:
                generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
                yield pack_noisy_copies(batch, tokenizer.mask_token_id, generator)


def train_backbone(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    recipe: BackboneRecipe | None = None,
    save_every: int = 100,
) -> Qwen3ForCausalLM:
    """Train the backbone, going on from `folder/state.pt` where there is one, and save it in `folder`."""
    recipe = recipe or BackboneRecipe()
    folder.mkdir(parents=True, exist_ok=True)
    state_file = folder / "state.pt"
    torch.manual_seed(recipe.seed)
    model = Qwen3ForCausalLM(backbone_config(recipe, tokenizer)).train()
    optimizers = build_optimizers(model, recipe.learning_rate)
    step = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        step = state["step"]
    batches = training_batches(recipe, tokenizer, step)
    with Progress() as progress, (folder / "log.jsonl").open("a") as log:
        task = progress.add_task("backbone", total=recipe.steps, completed=step)
        while step < recipe.steps:
            if step in recipe.cycle_starts:
                optimizers = build_optimizers(model, recipe.learning_rate)
            loss = diffusion_loss(model, next(batches))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            learning_rate = recipe.learning_rate_at(step)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            step += 1
            progress.update(task, completed=step, description=f"backbone, loss {loss.item():.3f}")
            if step % 10 == 0:
                log.write(json.dumps({"step": step, "loss": loss.item(), "learning_rate": learning_rate}) + "\n")
                log.flush()
            if step % save_every == 0 or step == recipe.steps:
                state = {
                    "model": model.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                    "step": step,
                }
                torch.save(state, state_file.with_suffix(".tmp"))
                os.replace(state_file.with_suffix(".tmp"), state_file)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1) + "\n")
    return model
