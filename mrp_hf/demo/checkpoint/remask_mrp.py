"""Remask decoding: reveal eagerly, then mask again what the head's corrected logits do not support."""

from collections.abc import Iterator

from .denoiser_mrp import Denoiser
from .reveal_mrp import State, write


def decode_remask(denoiser: Denoiser, remask_threshold: float) -> Iterator[None]:
    """The paper's rule (``remask_rule="confidence"``, arXiv 2605.18817, dynamic regime); yields after every step.

    1. One backbone forward gives the logits A; the rule reveals from them.
    2. The head reads the revealed ids and the hidden states from before.
    3. A token of this step whose probability under A + C is below `remask_threshold` is masked again. The one with the
       highest stays in any case, so every step makes progress.
    """
    rows = denoiser.rows
    while rows.active.any():
        state = rows.state()
        hidden = denoiser.backbone(state)
        proposal = denoiser.propose(state, hidden)
        positions = denoiser.rule.positions(proposal, state)
        revealed = write(state, proposal.tokens, positions)
        # A token that was revealed alone stays, so nobody needs to judge it.
        judged = positions & (positions.sum(-1, keepdim=True) > 1)
        if judged.any():
            corrected = denoiser.head(State(revealed.ids, judged, revealed.step), hidden)
            confidence = denoiser.confidence_in(revealed.ids, judged, corrected)
            surest = confidence.masked_fill(~judged, -1.0).argmax(-1, keepdim=True)
            again = (judged & (confidence < remask_threshold)).scatter(-1, surest, False)
            ids = revealed.ids.masked_fill(again, denoiser.model.config.mask_token_id)
            revealed = State(ids, revealed.masked | again, revealed.step)
            denoiser.stats.tokens_remasked += again.sum(-1)
        rows.advance(revealed)
        yield
