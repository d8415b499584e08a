"""Direct decoding: K lookahead steps reveal behind every backbone forward, unverified."""

from collections.abc import Iterator

from .denoiser_mrp import Denoiser


def decode_direct(denoiser: Denoiser, lookahead_steps: int) -> Iterator[None]:
    """Denoise with K + 1 reveals a backbone forward; yields after every forward.

    1. One backbone forward gives the logits A; the rule reveals from them.
    2. K times: the head reads the ids after the reveal and the hidden states from before it; the rule reveals from the
       corrected logits A + C_1 + ... + C_k.
    """
    rows = denoiser.rows
    while rows.active.any():
        state = rows.state()
        hidden = denoiser.backbone(state)
        state = denoiser.reveal(state, hidden)
        for _ in range(lookahead_steps):
            if not state.masked.any():
                break
            hidden = denoiser.head(state, hidden)
            state = denoiser.reveal(state, hidden)
        rows.advance(state)
        yield
