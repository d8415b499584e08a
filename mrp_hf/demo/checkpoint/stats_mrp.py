"""What one decode cost and did, counted exactly, per row."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

FORWARD_KINDS = ("verify", "denoise", "prefill", "commit")


@dataclass
class MRPStats:
    """Counts of one `generate` call; every tensor has one entry per row, on the CPU.

    Attributes:
        forwards (`dict[str, Tensor]`): backbone forwards by kind. A forward counts once for each row that takes part,
            under the first that applies of ``verify`` (it holds drafted candidates), ``denoise`` (it holds the row's
            current block), ``prefill`` (prompt only), ``commit`` (finished blocks only).
        head_forwards (`Tensor`): lookahead steps of the head.
        drafts_proposed, drafts_accepted (`Tensor` of shape (rows, K)): candidates packed behind the certain one, and
            those the backbone agreed to, by depth. A candidate counts as accepted only if all before it were.
        tokens_remasked (`Tensor`): tokens revealed and masked again.
        query_tokens (`Tensor`): tokens that the backbone computed, clean ones included, padding excluded.
    """

    forwards: dict[str, Tensor]
    head_forwards: Tensor
    drafts_proposed: Tensor
    drafts_accepted: Tensor
    tokens_remasked: Tensor
    query_tokens: Tensor

    @classmethod
    def zeros(cls, rows: int, lookahead_steps: int, device: torch.device) -> "MRPStats":
        def counts(*shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=torch.long, device=device)

        return cls(
            forwards={kind: counts() for kind in FORWARD_KINDS},
            head_forwards=counts(),
            drafts_proposed=counts(lookahead_steps),
            drafts_accepted=counts(lookahead_steps),
            tokens_remasked=counts(),
            query_tokens=counts(),
        )

    @property
    def backbone_forwards(self) -> Tensor:
        """All backbone forwards (rows,)."""
        return torch.stack(list(self.forwards.values())).sum(0)

    def cpu(self) -> "MRPStats":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        forwards = {kind: count.cpu() for kind, count in values.pop("forwards").items()}
        return MRPStats(forwards=forwards, **{name: count.cpu() for name, count in values.items()})
