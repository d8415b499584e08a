"""Plain decoding: the backbone alone, one forward a denoising step."""

from collections.abc import Iterator

from .denoiser_mrp import Denoiser


def decode_plain(denoiser: Denoiser) -> Iterator[None]:
    """Denoise block after block; yields after every step.

    1. One backbone forward over the current state gives the logits A.
    2. The reveal rule writes the next tokens.
    """
    rows = denoiser.rows
    while rows.active.any():
        state = rows.state()
        hidden = denoiser.backbone(state)
        rows.advance(denoiser.reveal(state, hidden))
        yield
