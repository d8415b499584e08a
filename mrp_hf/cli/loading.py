"""Loading models for the commands: quiet, but for one line on standard error that says what was made of a backbone."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

DEMO = "demo"


class _Echo(logging.Handler):
    """Log lines on whatever standard error is when they come."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(record.getMessage(), err=True)


@contextmanager
def _echoed(log: logging.Logger) -> Iterator[None]:
    """Inside, what `log` is told is shown, information included."""
    handler, level = _Echo(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def load_checkpoint(
    name_or_path: str, trust_remote_code: bool = False
) -> "tuple[MRPForDiffusionLM, PreTrainedTokenizerBase]":
    """An MRP checkpoint of any format and its tokenizer; the name `demo` means the shipped one."""
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from mrp_hf.demo.shipped import shipped_checkpoint
    from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

    disable_progress_bar()  # of loading weights: the commands show their own
    folder = str(shipped_checkpoint()) if name_or_path == DEMO else name_or_path
    model = MRPForDiffusionLM.from_pretrained(folder, trust_remote_code=trust_remote_code)
    # The config is given, because a published checkpoint's asks for code of its own to be run.
    return model, AutoTokenizer.from_pretrained(folder, config=model.config, trust_remote_code=trust_remote_code)


def load_backbone(name_or_path: str, **settings: Any) -> "tuple[MRPForDiffusionLM, PreTrainedTokenizerBase]":
    """A backbone under a fresh head, and its tokenizer; `demo` means the shipped checkpoint's. For `settings` see
    `MRPForDiffusionLM.from_backbone`."""
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

    disable_progress_bar()
    if name_or_path == DEMO:
        demo, tokenizer = load_checkpoint(DEMO)
        own = {"mask_token_id": demo.config.mask_token_id, "block_length": demo.config.block_length}
        model = MRPForDiffusionLM.from_backbone(demo.backbone, **(own | settings))
        model.generation_config = demo.generation_config
        return model, tokenizer
    with _echoed(logging.getLogger("mrp_hf.modeling")):
        model = MRPForDiffusionLM.from_backbone(name_or_path, **settings)
    trust = bool(settings.get("trust_remote_code"))
    return model, AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=trust)


def load_any(name_or_path: str, **settings: Any) -> "tuple[MRPForDiffusionLM, PreTrainedTokenizerBase]":
    """An MRP checkpoint of any format, or a backbone without a head; `settings` are for a backbone that leaves them
    open."""
    from mrp_hf.modeling.backbones_mrp import read_config_fields
    from mrp_hf.modeling.published_mrp import is_published

    if name_or_path == DEMO:
        return load_checkpoint(DEMO)
    fields = read_config_fields(name_or_path)
    if fields.get("model_type") == "mrp" or is_published(fields):
        trust = settings.pop("trust_remote_code", False)
        said = sorted(set(settings) - {"block_length"})  # which may be chosen for every decode
        if said:
            raise ValueError(f"{said} are for a backbone, but {name_or_path!r} is an MRP checkpoint: leave them out.")
        return load_checkpoint(name_or_path, trust)
    return load_backbone(name_or_path, num_mrp_layers=0, **settings)
