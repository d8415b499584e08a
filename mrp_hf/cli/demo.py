"""`mrp-hf demo`: what the modes cost and what they answer."""

from pathlib import Path
from typing import Annotated

import typer

ALL_PROBLEMS = 500


def demo(
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems to decode.")] = 64,
    all_problems: Annotated[bool, typer.Option("--all", help=f"Decode {ALL_PROBLEMS} problems.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems decoded together.")] = 16,
    alone: Annotated[int, typer.Option(min=0, help="Problems timed once more, one at a time.")] = 4,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint to decode with; 'demo' is the shipped one.")] = "demo",
    output: Annotated[Path, typer.Option(help="Folder for report.json and report.png.")] = Path("demo-report"),
) -> None:
    """Decode held-out problems with the demo checkpoint in every mode and print what each gave and cost.

    Each batch is decoded in every setting before the next one, so the wall-clock ratios are of one interleaved run.
    """
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from mrp_hf.cli.loading import load_checkpoint
    from mrp_hf.demo.compare import compare, count_decodes
    from mrp_hf.demo.report import print_report, save_json, save_picture
    from mrp_hf.demo.settings import demo_settings
    from mrp_hf.demo.shipped import read_figures
    from mrp_hf.demo.task import problems as make_problems

    console = Console()
    model, tokenizer = load_checkpoint(checkpoint)
    chosen = make_problems("test", ALL_PROBLEMS if all_problems else problems)
    settings = demo_settings(model.config.block_length)
    start = time.monotonic()
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("decoding", total=count_decodes(len(chosen), len(settings), alone))
        comparison = compare(
            model,
            tokenizer,
            chosen,
            settings,
            batch_size=batch_size,
            problems_alone=alone,
            on_batch=lambda setting, done: progress.update(task, advance=done, description=setting.name),
        )
    figures = read_figures(str(model.config.name_or_path))
    print_report(comparison, figures, console)
    output.mkdir(parents=True, exist_ok=True)
    save_json(comparison, figures, output / "report.json")
    save_picture(comparison, output / "report.png")
    console.print(f"Saved {output / 'report.json'} and {output / 'report.png'}; {time.monotonic() - start:.0f} s.")
