"""Decode held-out problems in every setting, in turn, and score them against plain static decoding."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from mrp_hf.demo.settings import STATIC, Setting
from mrp_hf.demo.task import Problem
from mrp_hf.evaluation import Decoded, ExactAnswer, StepValidity, decode_batch
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

OnBatch = Callable[[Setting, int], object]


@dataclass
class Score:
    """What one setting gave.

    Attributes:
        accuracy, step_validity: shares of the problems.
        forwards, head_forwards, new_tokens: means per problem.
        tokens_per_forward: new tokens over backbone forwards.
        speed: time of plain static decoding over this setting's, the median over batches of the same interleaved run.
        speed_alone: the same for problems decoded one at a time.
        identical: how many answers equal plain static decoding's token for token (speculative settings).
        dynamic_at_equal_forwards: accuracy of plain dynamic decoding at as many backbone forwards, read off its curve.
        dynamic_at_equal_cost: the same with each head forward charged as its share of a backbone forward.
    """

    setting: Setting
    accuracy: float
    step_validity: float
    forwards: float
    head_forwards: float
    new_tokens: float
    tokens_per_forward: float
    speed: float
    speed_alone: float | None = None
    identical: int | None = None
    dynamic_at_equal_forwards: float | None = None
    dynamic_at_equal_cost: float | None = None

    def to_dict(self) -> dict[str, object]:
        values = asdict(self)
        return values.pop("setting") | values


@dataclass
class Comparison:
    """Scores of all settings on the same problems; `head_cost` is a head forward's share of a backbone forward."""

    problems: int
    batch_size: int
    problems_alone: int
    head_cost: float
    scores: list[Score] = field(default_factory=list)

    def group(self, *names: str) -> list[Score]:
        return [score for score in self.scores if score.setting.group in names]


def untrained_twin(model: MRPForDiffusionLM) -> MRPForDiffusionLM:
    """The same backbone, shared, under a fresh head of the same size: the control of a trained drafter."""
    twin = MRPForDiffusionLM.from_backbone(
        model.backbone,
        num_mrp_layers=model.config.num_mrp_layers,
        mask_token_id=model.config.mask_token_id,
        block_length=model.config.block_length,
        mrp_initializer_range=model.config.mrp_initializer_range,
    )
    twin.generation_config = model.generation_config
    return twin


def head_cost(model: MRPForDiffusionLM) -> float:
    """Parameters that a head forward multiplies with, over those of a backbone forward, LM head included in both."""

    def matrices(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters() if p.ndim == 2)

    if model.mrp_head is None:
        return 0.0
    embeddings, lm_head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = embeddings.weight is lm_head.weight
    backbone = matrices(model.backbone) - (0 if tied else matrices(embeddings))
    return (matrices(model.mrp_head) + matrices(lm_head)) / backbone


def compare(
    model: MRPForDiffusionLM,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    settings: Sequence[Setting],
    *,
    batch_size: int = 16,
    problems_alone: int = 8,
    on_batch: OnBatch | None = None,
) -> Comparison:
    """Decode `problems` in batches, and the first `problems_alone` of them once more one at a time.

    Each batch is decoded in every setting before the next one, so that whatever else the machine does falls on all
    settings alike, and a setting's speed is the median of its ratios to plain static decoding of the same batch.
    """
    models = {"trained head": model, "untrained head": untrained_twin(model)}

    def decode_all(chosen: Sequence[Problem], size: int) -> dict[str, Decoded]:
        decoded = {setting.name: Decoded() for setting in settings}
        for batch in _batches(chosen, size):
            for setting in settings:
                decoder = models.get(setting.drafter or "", model)
                questions = [problem.question for problem in batch]
                decoded[setting.name].extend(decode_batch(decoder, tokenizer, questions, **setting.fields))
                if on_batch is not None:
                    on_batch(setting, len(batch))
        return decoded

    # The first calls of a process are slow (lazy imports, thread pools); they would all fall on the first setting.
    decode_batch(model, tokenizer, [problems[0].question])
    together = decode_all(problems, batch_size)
    alone = decode_all(problems[:problems_alone], 1)
    comparison = Comparison(len(problems), batch_size, len(alone[STATIC].texts), head_cost(model))
    for setting in settings:
        score = _score(setting, together[setting.name], together[STATIC], problems)
        if problems_alone > 0:
            score.speed_alone = _speed(alone[setting.name], alone[STATIC])
        comparison.scores.append(score)
    _add_dynamic_controls(comparison)
    return comparison


def count_decodes(problems: int, settings: int, problems_alone: int) -> int:
    """How many problems `compare` decodes in all, for a progress bar."""
    return settings * (problems + min(problems_alone, problems))


def _batches(problems: Sequence[Problem], size: int) -> Iterator[Sequence[Problem]]:
    for start in range(0, len(problems), size):
        yield problems[start : start + size]


def _score(setting: Setting, decoded: Decoded, static: Decoded, problems: Sequence[Problem]) -> Score:
    accuracy = ExactAnswer().compute(predictions=decoded.texts, references=[p.total for p in problems])
    validity = StepValidity().compute(predictions=decoded.texts, references=[list(p.terms) for p in problems])
    identical = sum(a == b for a, b in zip(decoded.tokens, static.tokens, strict=True))
    return Score(
        setting=setting,
        accuracy=accuracy["exact_answer"],
        step_validity=validity["step_validity"],
        forwards=statistics.mean(decoded.forwards),
        head_forwards=statistics.mean(decoded.head_forwards),
        new_tokens=statistics.mean(map(len, decoded.tokens)),
        tokens_per_forward=decoded.tokens_per_forward,
        speed=_speed(decoded, static),
        identical=identical if setting.group == "speculative" else None,
    )


def _speed(decoded: Decoded, static: Decoded) -> float:
    return statistics.median(slow / fast for slow, fast in zip(static.seconds, decoded.seconds, strict=True))


def _add_dynamic_controls(comparison: Comparison) -> None:
    """Read plain dynamic decoding's accuracy at the forwards of every setting that uses the head.

    The curve runs through the dynamic settings and ends at plain static decoding; outside it there is no figure.
    """
    curve = sorted((s.forwards, s.accuracy) for s in comparison.group("plain dynamic", "static"))
    forwards, accuracy = zip(*curve, strict=True)

    def at(value: float) -> float | None:
        inside = forwards[0] <= value <= forwards[-1]
        return float(np.interp(value, forwards, accuracy)) if inside else None

    for score in comparison.group("remask", "direct"):
        score.dynamic_at_equal_forwards = at(score.forwards)
        score.dynamic_at_equal_cost = at(score.forwards + comparison.head_cost * score.head_forwards)
