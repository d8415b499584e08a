"""What the demo compares: every decoding mode with its controls, as fields of `MRPGenerationConfig`."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

Group = Literal["static", "static, more a step", "direct", "plain dynamic", "remask", "speculative"]
Drafter = Literal["trained head", "untrained head", "no head"]

DYNAMIC_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
REMASK_THRESHOLDS = (0.5, 0.7, 0.9)
DIRECT_STEPS = (1, 2, 3)
SPECULATIVE_STEPS = (1, 3, 6)
DRAFTERS: dict[Drafter, str] = {"trained head": "head", "untrained head": "head", "no head": "backbone"}
STATIC = "static"


@dataclass(frozen=True)
class Setting:
    """One way to decode.

    Attributes:
        name: unique, as the tables show it.
        group: what it is compared with.
        value: threshold or number of lookahead steps, where the group has one.
        drafter: of speculative settings: trained head, untrained head, or the backbone's own next-best picks.
        fields: what to pass to `generate`.
    """

    name: str
    group: Group
    fields: Mapping[str, object]
    value: float | None = None
    drafter: Drafter | None = None


def demo_settings(block_length: int) -> list[Setting]:
    """All settings of the demo; the first is plain static decoding, which the others are measured against."""
    settings = [Setting(STATIC, "static", {})]
    for steps in DIRECT_STEPS:
        wide = {"denoising_steps": ceil(block_length / (steps + 1))}
        settings.append(Setting(f"static, {steps + 1} a step", "static, more a step", wide, steps))
        direct = {"mrp_mode": "direct", "mrp_num_lookahead_steps": steps}
        settings.append(Setting(f"direct, K = {steps}", "direct", direct, steps))
    for threshold in DYNAMIC_THRESHOLDS:
        dynamic = {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": threshold}
        settings.append(Setting(f"plain dynamic, {threshold}", "plain dynamic", dynamic, threshold))
    for threshold in REMASK_THRESHOLDS:
        remask = {"mrp_mode": "remask", "confidence_threshold": threshold}
        settings.append(Setting(f"remask, {threshold}", "remask", remask, threshold))
    for steps in SPECULATIVE_STEPS:
        for drafter, mrp_drafter in DRAFTERS.items():
            fields = {"mrp_mode": "speculative", "mrp_num_lookahead_steps": steps, "mrp_drafter": mrp_drafter}
            settings.append(Setting(f"speculative, K = {steps}, {drafter}", "speculative", fields, steps, drafter))
    return settings
