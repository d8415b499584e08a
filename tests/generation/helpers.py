"""Models, prompts and calls that the tests of decoding share."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from mrp_hf import MRPForDiffusionLM, MRPGenerationConfig, MRPGenerationMixin
from mrp_hf.generation.generation_mrp import MRPGenerationOutput

VOCABULARY, EOS, PAD, MASK = 24, 21, 22, 23
RULES = ("low_confidence_static", "low_confidence_dynamic", "sequential", "entropy_bounded", "random")

# Every way to decode, as keyword arguments.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "direct": {"mrp_mode": "direct", "mrp_num_lookahead_steps": 2},
    "speculative-head": {"mrp_mode": "speculative", "mrp_drafter": "head"},
    "speculative-backbone": {"mrp_mode": "speculative", "mrp_drafter": "backbone", "mrp_num_lookahead_steps": 2},
    "remask": {"mrp_mode": "remask"},
}


def draw_prompt(length: int, seed: int = 0) -> list[int]:
    """Ordinary tokens: neither end of sequence, padding nor mask."""
    generator = random.Random(f"{length} {seed}")
    return [generator.randrange(EOS) for _ in range(length)]


def pad(prompts: Sequence[list[int]], side: str = "left", junk: int | None = None) -> tuple[Tensor, Tensor]:
    """Ids and mask of prompts of different lengths; pad columns hold PAD, or random ids drawn with seed `junk`."""
    width = max(map(len, prompts))
    generator = random.Random(junk)
    ids, mask = [], []
    for prompt in prompts:
        filler = [PAD if junk is None else generator.randrange(VOCABULARY) for _ in range(width - len(prompt))]
        zeros, ones = [0] * len(filler), [1] * len(prompt)
        ids.append(filler + prompt if side == "left" else prompt + filler)
        mask.append(zeros + ones if side == "left" else ones + zeros)
    return torch.tensor(ids, dtype=torch.long), torch.tensor(mask, dtype=torch.long)


def run(
    model: Any, prompts: Sequence[list[int]], *, side: str = "left", junk: int | None = None, **fields: Any
) -> MRPGenerationOutput:
    """Decode prompts; no end-of-sequence token unless given, and noise of one seed."""
    ids, mask = pad(prompts, side, junk)
    settings = {"eos_token_id": None, "pad_token_id": PAD, "return_dict_in_generate": True, "seed": 7} | fields
    output = model.generate(ids, attention_mask=mask, **settings)
    repeats = fields.get("num_return_sequences", 1)
    assert torch.equal(output.sequences[:, : ids.shape[1]], ids.repeat_interleave(repeats, dim=0))
    return output


def answers(output: MRPGenerationOutput) -> list[list[int]]:
    """Tokens kept of each row, from the counts; what follows them must be padding."""
    forwards = output.mrp_stats.backbone_forwards
    kept = (output.tokens_per_forward * forwards).round().long().tolist()
    width = output.sequences.shape[1] - max(kept)
    rows = []
    for row, length in zip(output.sequences[:, width:].tolist(), kept, strict=True):
        assert set(row[length:]) <= {PAD}
        rows.append(row[:length])
    return rows


def counts(output: MRPGenerationOutput, row: int = 0) -> dict[str, Any]:
    """All counts of one row."""
    stats = output.mrp_stats
    return {
        **{kind: int(count[row]) for kind, count in stats.forwards.items()},
        "head": int(stats.head_forwards[row]),
        "proposed": stats.drafts_proposed[row].tolist(),
        "accepted": stats.drafts_accepted[row].tolist(),
        "remasked": int(stats.tokens_remasked[row]),
        "queries": int(stats.query_tokens[row]),
        "tokens per forward": float(output.tokens_per_forward[row]),
    }


class StubHead(nn.Module):
    """A head that predicts whatever `predict(embeddings, hidden)` says."""

    def __init__(self, predict: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.predict = predict

    def forward(self, inputs_embeds: Tensor, hidden_states: Tensor, *_: Any) -> Tensor:
        return self.predict(inputs_embeds, hidden_states)


def set_head(model: MRPForDiffusionLM, kind: str) -> MRPForDiffusionLM:
    """Replace the head by one of a kind; "random" keeps it."""
    votes = model.backbone.lm_head.weight[EOS]
    predictions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "zero": lambda embeddings, hidden: torch.zeros_like(hidden),
        "constant": lambda embeddings, hidden: torch.ones_like(hidden),
        "ends": lambda embeddings, hidden: 100 * votes.expand_as(hidden),
        "huge": lambda embeddings, hidden: 1e30 * embeddings,
    }
    if kind != "random":
        model.mrp_head = StubHead(predictions[kind])
    return model


def blind(model: MRPForDiffusionLM) -> MRPForDiffusionLM:
    """Let no position of the backbone see another, so that all masked positions look alike and stay so."""
    for layer in model.backbone.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    return model


class ScriptedModel(MRPGenerationMixin):
    """A model without weights: the logits of each position are given, and those the head would correct them to.

    It has no attention: a "hidden state" is the position's number, plus `HEAD` once a head has been over it.
    """

    HEAD = 10_000

    def __init__(self, logits: Tensor, corrected: Tensor | None = None, block_length: int = 4, **config: Any):
        self.logits, self.corrected = logits, corrected
        settings = {
            "vocab_size": logits.shape[1],
            "mask_token_id": logits.shape[1] - 1,
            "block_length": block_length,
            "attention_pattern": "block_causal",
            "num_mrp_layers": 0 if corrected is None else 1,
            "num_backbone_layers": 0,
            "backbone_caches": True,
            "logit_shift": False,
            "max_position_embeddings": len(logits),
            "mrp_head_trained": corrected is not None,
        }
        self.config = SimpleNamespace(**settings | config)
        self.generation_config = MRPGenerationConfig(pad_token_id=logits.shape[1] - 2)
        self.device, self.dtype = logits.device, logits.dtype

    def backbone_hidden_states(self, input_ids, position_ids, attention_mask, cache=None):
        return position_ids.unsqueeze(-1).double()

    def mrp_step(self, input_ids, hidden_states, position_ids, attention_mask, cache=None):
        return position_ids.unsqueeze(-1).double() + self.HEAD

    def project(self, hidden_states):
        position = hidden_states.squeeze(-1).long()
        by_head = position >= self.HEAD
        logits = self.logits[position % self.HEAD]
        return (
            logits if not by_head.any() else torch.where(by_head[:, None], self.corrected[position % self.HEAD], logits)
        )


def script(choices: Sequence[dict[int, float]], vocabulary: int = 8) -> Tensor:
    """Logits (positions, vocabulary): one dict a position of token: probability, what remains spread over the others.

    The mask token, the last id, gets nothing.
    """
    table = torch.zeros(len(choices), vocabulary, dtype=torch.float64)
    for row, choice in zip(table, choices, strict=True):
        rest = [token for token in range(vocabulary - 1) if token not in choice]
        row[rest] = (1 - sum(choice.values())) / len(rest)
        for token, probability in choice.items():
            row[token] = probability
    return table.log()
