"""`MRPGenerationConfig`: how to decode, with every default in one place."""

import difflib
import math
from functools import cache
from typing import Any, ClassVar, Literal, get_args

from transformers import GenerationConfig

from .candidates_mrp import MOST_POSITIONS
from .reveal_mrp import STRATEGIES

Mode = Literal["direct", "speculative", "remask"]
MODES: tuple[str, ...] = get_args(Mode)
DRAFTERS = ("head", "backbone")
REMASK_RULES = ("confidence",)
APPROXIMATE_CACHES = ("prefix", "dual")

# None means "not set" in a config, so that configs can be laid over each other; these stand where nothing is set.
DEFAULTS: dict[str, Any] = {
    "mrp_num_lookahead_steps": 3,
    "remasking_strategy": "low_confidence_static",
    "confidence_threshold": 0.9,
    "entropy_bound": 0.1,
    "remask_rule": "confidence",
    "max_new_tokens": 256,
}
# Remasking needs eager reveals to have something to take back.
MODE_DEFAULTS: dict[str, dict[str, Any]] = {"remask": {"remasking_strategy": "low_confidence_dynamic"}}

# What has no meaning, or another one, where tokens are not written from left to right, and the values that ask for
# nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "diversity_penalty": (0.0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "guidance_scale": (1.0,),
    "output_scores": (False,),
    "output_logits": (False,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    **dict.fromkeys(
        (
            "top_h",
            "typical_p",
            "epsilon_cutoff",
            "eta_cutoff",
            "bad_words_ids",
            "begin_suppress_tokens",
            "sequence_bias",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "exponential_decay_length_penalty",
            "watermarking_config",
            "stop_strings",
            "max_time",
            "prompt_lookup_num_tokens",
            "force_words_ids",
            "constraints",
            "dola_layers",
            "cache_implementation",
            "prefill_chunk_size",
            "token_healing",
        ),
        (False,),
    ),
}
_LENGTHS = ("max_new_tokens", "max_length")


def _check(condition: bool, name: str, value: Any, remedy: str) -> None:
    if not condition:
        raise ValueError(f"`{name}` is {value!r}: {remedy}.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class MRPGenerationConfig(GenerationConfig):
    """A `GenerationConfig` with the fields of diffusion decoding and Multi-token Residual Prediction.

    Of transformers' own fields these are read: `max_new_tokens` (256 unless set), `max_length`, `do_sample`,
    `temperature`, `top_k`, `top_p`, `min_p`, `suppress_tokens`, `num_return_sequences`, `return_dict_in_generate` and
    the special tokens' ids. Fields that cannot hold for diffusion decoding are refused by `generate`.

    Args:
        mrp_mode (`str`, *optional*): `None` decodes with the backbone alone; `"direct"`, `"speculative"` (lossless) and
            `"remask"` spend lookahead steps.
        mrp_num_lookahead_steps (`int`, *optional*, defaults to 3): K, lookahead steps behind one backbone forward, in
            direct and speculative mode.
        mrp_drafter (`str`, *optional*): `"head"` drafts with the MRP head, `"backbone"` with the next-best picks of the
            backbone's own logits, which needs no head. Defaults to the head where it has been trained.
        mrp_num_candidates (`int`, *optional*): states that speculative mode verifies in one forward, the certain one
            included: the likeliest orders of the next reveals instead of one chain of K. Then K is the most steps that
            they go ahead, 7 unless set.
        block_length (`int`, *optional*, defaults to the model's): tokens denoised together.
        denoising_steps (`int`, *optional*, defaults to `block_length`): steps that a block's reveals are spread over.
        remasking_strategy (`str`, *optional*, defaults to `"low_confidence_static"`, in remask mode to
            `"low_confidence_dynamic"`): the reveal rule, see `RevealRule`.
        confidence_threshold (`float`, *optional*, defaults to 0.9): what `"low_confidence_dynamic"` reveals above.
        tie_ceiling (`float`, *optional*): confidences above it count as equal for `"low_confidence_static"`, which then
            takes the leftmost: an order that drafts foresee more easily. Another rule, so another output.
        entropy_bound (`float`, *optional*, defaults to 0.1): nats that `"entropy_bounded"` reveals up to.
        remask_rule (`str`, *optional*, defaults to `"confidence"`): how remask mode judges (the paper's rule).
        remask_threshold (`float`, *optional*, defaults to `confidence_threshold`): corrected confidence below which a
            token of the same step is masked again.
        approximate_cache (`str`, *optional*): for bidirectional backbones, which are exact without a cache: what of a
            block's first forward its later ones read instead of computing it again. `"prefix"`: everything before the
            block; `"dual"`: everything outside it (Fast-dLLM, arXiv 2505.22618).
        seed (`int` or `list[int]`, *optional*): seed of the sampling noise, one for all rows or one a row; drawn from
            torch's default generator unless set. Rows with one seed and equal prompts give equal samples: give a list,
            or use `num_return_sequences`, for different ones.
    """

    MRP_FIELDS: ClassVar[tuple[str, ...]]  # the names below, in their order

    mrp_mode: str | None
    mrp_num_lookahead_steps: Any
    mrp_drafter: str | None
    mrp_num_candidates: int | None
    block_length: int | None
    denoising_steps: int | None
    remasking_strategy: Any
    confidence_threshold: Any
    tie_ceiling: float | None
    entropy_bound: Any
    remask_rule: str | None
    remask_threshold: float | None
    approximate_cache: str | None
    seed: int | list[int] | tuple[int, ...] | None

    def __init__(self, **kwargs: Any):
        for name in self.MRP_FIELDS:
            setattr(self, name, kwargs.pop(name, None))
        _reject_unknown(kwargs)
        super().__init__(**kwargs)

    def validate(self, strict: bool = False, user_set_attributes: set[str] | None = None) -> None:
        """Raise `ValueError` naming the field, its value and the remedy."""
        for name, allowed in (
            ("mrp_mode", MODES),
            ("mrp_drafter", DRAFTERS),
            ("remasking_strategy", STRATEGIES),
            ("remask_rule", REMASK_RULES),
            ("approximate_cache", APPROXIMATE_CACHES),
        ):
            value = getattr(self, name)
            _check(value is None or value in allowed, name, value, f"choose one of {', '.join(allowed)}, or None")
        counts = (
            "mrp_num_lookahead_steps",
            "mrp_num_candidates",
            "block_length",
            "denoising_steps",
            "num_return_sequences",
            *_LENGTHS,
        )
        for name in counts:
            value = getattr(self, name)
            _check(value is None or _is_count(value), name, value, "give a whole number of at least 1")
        for name in ("confidence_threshold", "tie_ceiling", "remask_threshold", "top_p", "min_p"):
            value = getattr(self, name)
            inside = _is_number(value) and 0 <= value <= 1
            _check(value is None or inside, name, value, "a probability is wanted, from 0 to 1")
        bound = self.entropy_bound
        fine = bound is None or (_is_number(bound) and 0 <= bound < math.inf)
        _check(fine, "entropy_bound", bound, "give a finite number of nats, 0 or more")
        seeds = self.seed if isinstance(self.seed, list | tuple) else [self.seed]
        for seed in seeds:
            fine = seed is None or (isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**62)
            _check(fine, "seed", self.seed, "give a whole number from 0 to 2**62 - 1, or a list of them, one a row")
        fine = self.temperature is None or (_is_number(self.temperature) and 0 <= self.temperature < math.inf)
        _check(fine, "temperature", self.temperature, "give a finite number of 0 (greedy) or more")
        listed = self.suppress_tokens or []
        fine = isinstance(listed, list | tuple) and all(isinstance(token, int) for token in listed)
        _check(fine, "suppress_tokens", self.suppress_tokens, "give a list of token ids")
        super().validate(strict=strict, user_set_attributes=user_set_attributes)

    @classmethod
    def from_model_config(cls, model_config: Any) -> "MRPGenerationConfig":
        """Refused: a model's config holds no decoding fields (transformers would copy by attribute name)."""
        raise NotImplementedError("make an MRPGenerationConfig from its fields, or load generation_config.json")


MRPGenerationConfig.MRP_FIELDS = tuple(name for name in MRPGenerationConfig.__annotations__ if name != "MRP_FIELDS")


def resolve(
    own: GenerationConfig | None, given: GenerationConfig | None, fields: dict[str, Any]
) -> MRPGenerationConfig:
    """The config a call decodes with: defaults, then the model's own, then the one given, then keyword arguments.

    Raises:
        ValueError: for an unknown or refused field, or a value out of range.
    """
    if given is not None and not isinstance(given, GenerationConfig):
        raise TypeError(f"`generation_config` is a {type(given).__name__}: give a GenerationConfig.")
    _reject_unknown(fields)
    merged: dict[str, Any] = {}
    layers = [_set_fields(own), _set_fields(given), fields]
    for layer in layers:
        if any(layer.get(name) is not None for name in _LENGTHS):
            merged = {name: value for name, value in merged.items() if name not in _LENGTHS}
        merged.update(layer)
    mode = merged.get("mrp_mode")
    _check(mode is None or mode in MODES, "mrp_mode", mode, f"choose one of {', '.join(MODES)}, or None")
    mode_defaults = MODE_DEFAULTS.get(mode or "", {})
    if merged.get("mrp_num_candidates") is not None:
        mode_defaults = mode_defaults | {"mrp_num_lookahead_steps": MOST_POSITIONS}
    for name, value in {**DEFAULTS, **mode_defaults}.items():
        if merged.get(name) is None and not (name == "max_new_tokens" and merged.get("max_length") is not None):
            merged[name] = value
    for name, neutral in _REFUSED.items():
        value = merged.get(name)
        remedy = "diffusion decoding writes tokens in no fixed order and cannot honour it; leave it out"
        _check(value is None or value in neutral, name, value, remedy)
    return MRPGenerationConfig(**merged)


def _set_fields(config: GenerationConfig | None) -> dict[str, Any]:
    if config is None:
        return {}
    hidden = ("transformers_version", "_from_model_config")
    return {name: value for name, value in config.to_dict().items() if value is not None and name not in hidden}


@cache
def _known_fields() -> frozenset[str]:
    return frozenset((*vars(GenerationConfig()), *MRPGenerationConfig.MRP_FIELDS, "_commit_hash"))


def _reject_unknown(fields: dict[str, Any]) -> None:
    known = _known_fields()
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{close[0]}`?" if close else "see MRPGenerationConfig for the options there are."
            raise ValueError(f"`{name}` is no generation option: {hint}")
