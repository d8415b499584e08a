"""`mrp-hf`: the commands, and how their errors end.

Nothing heavy is imported here: each command imports what it needs when it runs.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mrp_hf.cli.build import build_demo
from mrp_hf.cli.convert import convert
from mrp_hf.cli.demo import demo
from mrp_hf.cli.generate import generate
from mrp_hf.cli.refresh import refresh
from mrp_hf.cli.train import train

app = typer.Typer(
    name="mrp-hf",
    help="Faster diffusion language models by multi-token residual prediction.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(demo)
app.command()(generate)
app.command()(train)
app.command()(build_demo)
app.command()(convert)
app.command()(refresh)


@app.callback()
def common(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """Faster diffusion language models by multi-token residual prediction."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error ends in one line on standard error and exit code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=arguments)
    except ModuleNotFoundError as error:
        if "--debug" in arguments:
            raise
        _fail(f"{error}; `pip install 'mrp-hf[train,eval]'` installs what the commands need")
    except Exception as error:
        if "--debug" in arguments:
            raise
        _fail(str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}")


def _fail(message: str) -> None:
    sys.stderr.write(f"mrp-hf: {' '.join(message.split())}\n")
    raise SystemExit(2)
