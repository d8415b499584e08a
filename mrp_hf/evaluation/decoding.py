"""Decode many prompts in batches and keep what each of them cost."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM


@dataclass
class Decoded:
    """Answers and their costs, one entry per prompt; only `seconds` has one per batch.

    Attributes:
        texts: the answers without special tokens.
        tokens: the ids of each answer as generated, end-of-sequence token included, padding not.
        forwards, head_forwards: backbone forwards and lookahead steps.
        tokens_remasked: tokens revealed and masked again.
        seconds: wall-clock time of each batch.
    """

    texts: list[str] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    head_forwards: list[int] = field(default_factory=list)
    tokens_remasked: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def extend(self, other: "Decoded") -> None:
        for name, values in vars(other).items():
            getattr(self, name).extend(values)

    @property
    def tokens_per_forward(self) -> float:
        """New tokens over backbone forwards, of all prompts together."""
        return sum(map(len, self.tokens)) / sum(self.forwards)


def encode_prompts(tokenizer: PreTrainedTokenizerBase, questions: Sequence[str]) -> list[list[int]]:
    """Each question as the user's turn of the tokenizer's chat template, or as it is where there is none."""
    if tokenizer.chat_template is None:
        return [tokenizer(question)["input_ids"] for question in questions]
    chats = [[{"role": "user", "content": question}] for question in questions]
    template: Any = tokenizer.apply_chat_template  # what it returns depends on its arguments
    return [template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]


def decode_batch(
    model: MRPForDiffusionLM, tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], **generation_fields: Any
) -> Decoded:
    """Decode `questions` as one left-padded batch; `generation_fields` are those of `MRPGenerationConfig`."""
    batch = tokenizer.pad({"input_ids": encode_prompts(tokenizer, questions)}, padding_side="left", return_tensors="pt")
    batch = batch.to(model.device)
    start = time.perf_counter()
    output: Any = model.generate(**batch, return_dict_in_generate=True, **generation_fields)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    seconds = time.perf_counter() - start
    # Padding may share its id with the end-of-sequence token, so an answer ends with the first end, not before padding.
    ends = generation_fields.get("eos_token_id", model.generation_config.eos_token_id)
    ends = set(ends) if isinstance(ends, list) else {ends}
    tokens = [_until(row, ends) for row in output.sequences[:, batch["input_ids"].shape[1] :].tolist()]
    return Decoded(
        texts=tokenizer.batch_decode(tokens, skip_special_tokens=True),
        tokens=tokens,
        forwards=output.mrp_stats.backbone_forwards.tolist(),
        head_forwards=output.mrp_stats.head_forwards.tolist(),
        tokens_remasked=output.mrp_stats.tokens_remasked.tolist(),
        seconds=[seconds],
    )


def decode(
    model: MRPForDiffusionLM,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    *,
    batch_size: int = 16,
    on_batch: Callable[[int], object] | None = None,
    **generation_fields: Any,
) -> Decoded:
    """Decode `questions` in batches; `on_batch` is told how many were done in each, for a progress bar."""
    decoded = Decoded()
    for start in range(0, len(questions), batch_size):
        batch = questions[start : start + batch_size]
        decoded.extend(decode_batch(model, tokenizer, batch, **generation_fields))
        if on_batch is not None:
            on_batch(len(batch))
    return decoded


def _until(ids: list[int], ends: set[int]) -> list[int]:
    """`ids` up to and including the first of `ends`."""
    for index, token in enumerate(ids):
        if token in ends:
            return ids[: index + 1]
    return ids
