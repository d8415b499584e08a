"""The demo's comparison as tables, as JSON and as a picture."""

import json
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

from mrp_hf.demo.compare import Comparison, Score

GROUPS = (
    ("static, more a step", "direct"),
    ("plain dynamic",),
    ("remask",),
    ("speculative",),
)


def print_report(comparison: Comparison, figures: dict[str, Any] | None, console: Console) -> None:
    """Print one table over all settings and, where the checkpoint's `figures` are known, one of its heads."""
    console.print(_settings_table(comparison))
    error = 50 / comparison.problems**0.5
    console.print(
        f"exact: right final answer; steps: every worked step right; both in %, standard error at most {error:.1f}.\n"
        "forw., head: backbone and head forwards a problem; TPF: tokens per backbone forward.\n"
        f"speed: time of plain static decoding over this setting's, batch after batch in one interleaved run "
        f"(batch {comparison.batch_size}; alone: one problem at a time, {comparison.problems_alone} problems).\n"
        "equal: exact answers of plain dynamic decoding, read off its curve, at as many backbone forwards; cost: the "
        f"same with a head forward charged as {comparison.head_cost:.2f} backbone forwards.\n"
        "same: answers identical to static, token for token.",
        style="dim",
    )
    if figures is not None:
        console.print(_heads_table(figures))


def _settings_table(comparison: Comparison) -> Table:
    # Fits 80 columns: numbers stay whole and only names are broken.
    table = Table(
        title=f"{comparison.problems} held-out problems",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("setting")
    names = ("exact", "steps", "forw.", "head", "TPF", "speed", "alone", "equal", "cost", "same")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for groups in (("static",), *GROUPS):
        for score in comparison.group(*groups):
            table.add_row(*_row(score, comparison.problems))
        table.add_row()
    return table


def _row(score: Score, problems: int) -> tuple[str, ...]:
    controls = (score.dynamic_at_equal_forwards, score.dynamic_at_equal_cost)
    has_control = score.setting.group in ("direct", "remask")
    return (
        score.setting.name,
        f"{100 * score.accuracy:.1f}",
        f"{100 * score.step_validity:.1f}",
        f"{score.forwards:.1f}",
        f"{score.head_forwards:.1f}" if score.head_forwards else "",
        f"{score.tokens_per_forward:.2f}",
        f"{score.speed:.2f}x",
        "" if score.speed_alone is None else f"{score.speed_alone:.2f}x",
        *(("-" if value is None else f"{100 * value:.1f}") if has_control else "" for value in controls),
        "" if score.identical is None else f"{score.identical}/{problems}",
    )


def _heads_table(figures: dict[str, Any]) -> Table:
    explained: dict[str, list[float]] = figures["residual_explained"]
    steps = range(1, len(next(iter(explained.values()))) + 1)
    table = Table(title="Share of KL(B || A) that the head explains, held-out data, in %", title_justify="left")
    table.add_column("head")
    for k in steps:
        table.add_column(f"k = {k}", justify="right")
    for name, shares in explained.items():
        table.add_row(name, *(f"{100 * share:.1f}" for share in shares))
    return table


def save_json(comparison: Comparison, figures: dict[str, Any] | None, path: Path) -> None:
    """Everything that the tables and the picture show, unrounded."""
    report = {
        "problems": comparison.problems,
        "batch_size": comparison.batch_size,
        "problems_alone": comparison.problems_alone,
        "head_cost": comparison.head_cost,
        "settings": [score.to_dict() for score in comparison.scores],
        "checkpoint": figures,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def save_picture(comparison: Comparison, path: Path) -> None:
    """Two panels: accuracy against forwards, and tokens per forward of speculative decoding by K and drafter."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), gridspec_kw={"width_ratios": [1.7, 1]})
    _draw_accuracy(left, comparison)
    _draw_speculative(right, comparison)
    figure.suptitle(f"Demo model, {comparison.problems} held-out problems", x=0.01, ha="left", weight="bold")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_accuracy(axes: "matplotlib.axes.Axes", comparison: Comparison) -> None:
    styles: dict[str, dict[str, Any]] = {
        "plain dynamic": {"color": "#5b6770", "marker": "o", "label": "plain dynamic, by threshold"},
        "remask": {"color": "#c8442b", "marker": "D", "label": "remask, by threshold"},
        "static, more a step": {"color": "#9aa5ad", "marker": "s", "linestyle": ":", "label": "static, K + 1 a step"},
        "direct": {"color": "#2a6fb0", "marker": "^", "linestyle": "--", "label": "direct, by K"},
        "static": {"color": "black", "marker": "*", "markersize": 14, "linestyle": "", "label": "static"},
    }
    for group, style in styles.items():
        scores = sorted(comparison.group(group), key=lambda score: score.forwards)
        axes.plot([s.forwards for s in scores], [100 * s.accuracy for s in scores], **style)
        below = group in ("plain dynamic", "static, more a step")
        for score in scores:
            if score.setting.value is None:
                continue
            axes.annotate(
                f"{score.setting.value:g}",
                (score.forwards, 100 * score.accuracy),
                xytext=(5, -12) if below else (-5, 7),
                textcoords="offset points",
                ha="left" if below else "right",
                color=style["color"],
                fontsize=8,
            )
    axes.set_xlabel("backbone forwards per problem")
    axes.set_ylabel("exact answers, %")
    axes.set_ylim(-3, 105)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Accuracy against forwards", loc="left")


def _draw_speculative(axes: "matplotlib.axes.Axes", comparison: Comparison) -> None:
    scores = comparison.group("speculative")
    steps = sorted({score.setting.value for score in scores if score.setting.value is not None})
    colors = {"trained head": "#c8442b", "no head": "#5b6770", "untrained head": "#cfd5d9"}
    width = 0.26
    for offset, (drafter, color) in enumerate(colors.items()):
        chosen = {score.setting.value: score.tokens_per_forward for score in scores if score.setting.drafter == drafter}
        places = [index + (offset - 1) * width for index in range(len(steps))]
        bars = axes.bar(places, [chosen[step] for step in steps], width * 0.92, color=color, label=drafter)
        axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    axes.axhline(comparison.group("static")[0].tokens_per_forward, color="black", linewidth=1, label="plain static")
    axes.set_xticks(range(len(steps)), [f"K = {step}" for step in steps])
    axes.set_ylabel("tokens per backbone forward")
    axes.margins(y=0.15)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=4, frameon=False, fontsize=8, columnspacing=1)
    axes.spines[["top", "right"]].set_visible(False)
    same = all(score.identical == comparison.problems for score in scores)
    verdict = "all answers identical to static" if same else "SOME ANSWERS DIFFER FROM STATIC"
    axes.set_title(f"Speculative: {verdict}", loc="left")
