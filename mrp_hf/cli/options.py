"""Options that several commands share: what a backbone may leave open."""

from enum import StrEnum
from typing import Annotated

import typer


class Attention(StrEnum):
    block_causal = "block_causal"
    bidirectional = "bidirectional"


MaskTokenId = Annotated[int | None, typer.Option(help="Mask token, where the backbone does not say it.")]
BlockLength = Annotated[int | None, typer.Option(help="Tokens denoised together, where the backbone does not say it.")]
AttentionPattern = Annotated[
    Attention | None, typer.Option("--attention", help="How the backbone attends, where its family does not say it.")
]
LogitShift = Annotated[
    bool | None,
    typer.Option(
        "--logit-shift/--no-logit-shift",
        help="Whether token i is predicted at i - 1, if its family leaves it open.",
    ),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Load a backbone of no known family by its own code.")
]


def backbone_settings(
    mask_token_id: int | None,
    block_length: int | None,
    attention_pattern: Attention | None,
    logit_shift: bool | None,
    trust_remote_code: bool,
) -> dict[str, int | str]:
    """Those of the options that were given, as arguments of `from_backbone`."""
    settings = {
        "mask_token_id": mask_token_id,
        "block_length": block_length,
        "attention_pattern": attention_pattern and attention_pattern.value,
        "logit_shift": logit_shift,
        "trust_remote_code": trust_remote_code or None,
    }
    return {name: value for name, value in settings.items() if value is not None}
