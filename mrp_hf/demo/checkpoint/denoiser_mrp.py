"""One decode's view of the model: run backbone or head on states, score masked positions.

The decoding loops are written in these verbs: `backbone`, `head`, `propose`, `reveal` and `keep`. How a state meets the
model's attention is the matter of two subclasses, one for block-causal backbones and one for bidirectional ones.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from .protocol_mrp import DiffusionLM
from .reveal_mrp import Proposal, RevealRule, State
from .rows_mrp import Rows
from .sampling_mrp import TokenChooser, entropy_of, keyed_lot, probability_of
from .stats_mrp import MRPStats


class Denoiser(ABC):
    """Runs a model for the rows of one decode.

    Hidden states go from verb to verb without being looked into. They are *aligned*: the one at a place is what
    predicts the token there, also where the backbone's logits are shifted by one.

    Args:
        model (`DiffusionLM`): the model.
        rows (`Rows`): the rows; the loops change them, the denoiser reads them.
        rule (`RevealRule`), chooser (`TokenChooser`): how a step reveals.
        lookahead_steps (`int`): most steps that drafts go ahead of the certain state.
    """

    def __init__(
        self, model: DiffusionLM, rows: Rows, rule: RevealRule, chooser: TokenChooser, lookahead_steps: int = 0
    ):
        self.model, self.rows, self.rule, self.chooser = model, rows, rule, chooser
        self.stats = MRPStats.zeros(len(rows), lookahead_steps, rows.tokens.device)

    @abstractmethod
    def backbone(self, states: State, valid: Tensor | None = None) -> Tensor:
        """One backbone forward over states of the current blocks.

        Args:
            states (`State` of shape (rows,) or (rows, candidates)): what to read. Each state sees the rest of its row
                as far as the backbone's attention goes, and no other state.
            valid (`Tensor` of shape (rows, candidates), *optional*): which candidates are real; all by default.

        Returns:
            Hidden states of shape (rows, [candidates,] ...).
        """

    @abstractmethod
    def head(self, state: State, hidden: Tensor) -> Tensor:
        """One lookahead step: hidden states of shape (rows, ...) after the reveals in `state`."""

    @abstractmethod
    def keep(self, candidate: Tensor, full: Tensor) -> None:
        """Take over what the last forward computed of candidate number `candidate` (rows,) where it is `full`.

        To be called before the rows enter their next block.
        """

    @abstractmethod
    def next_block(self, reached_hidden: Tensor) -> Tensor | None:
        """Hidden states (rows, ...) of the next block, all masked, behind a full candidate that the last forward held.

        They mean something in rows that have reached that candidate and entered the block behind it: that block's first
        forward is made already. `None` where it must be made anew.

        Args:
            reached_hidden (`Tensor` of shape (rows, ...)): hidden states of the candidates reached.
        """

    @abstractmethod
    def of_block(self, hidden: Tensor) -> Tensor:
        """The hidden states (..., block_length, hidden) of the current blocks' places."""

    def propose(self, states: State, hidden: Tensor) -> Proposal:
        """What the rule chooses from, at each masked position of `states`; logits are computed nowhere else."""
        masked = states.masked
        keys = self._noise_keys(states)
        logits = self.chooser.suppress(self.model.project(self.of_block(hidden)[masked]))
        tokens, confidence = self.chooser.choose(logits, *keys)

        def spread(values: Tensor) -> Tensor:
            return values.new_zeros(masked.shape).masked_scatter(masked, values)

        return Proposal(
            states.ids.masked_scatter(masked, tokens),
            spread(confidence),
            spread(entropy_of(logits)) if self.rule.strategy == "entropy_bounded" else None,
            spread(keyed_lot(*keys, logits.shape[-1])) if self.rule.strategy == "random" else None,
        )

    @property
    def order_is_a_guess(self) -> bool:
        """Whether steps reveal single tokens, in an order that only the logits tell, and always the same token of one
        place: what is sampled depends on the step."""
        one_a_step = self.rule.denoising_steps == self.rule.block_length
        by_confidence = self.rule.strategy == "low_confidence_static" and self.rule.tie_ceiling is None
        return one_a_step and by_confidence and self.chooser.warpers is None

    def reveal(self, states: State, hidden: Tensor) -> State:
        """One application of the reveal rule."""
        return self.rule.apply(self.propose(states, hidden), states)

    def confidence_in(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """Probability of `tokens` (rows, block_length) at `positions` (boolean), 2 elsewhere."""
        logits = self.chooser.suppress(self.model.project(self.of_block(hidden)[positions]))
        confidence = probability_of(logits, tokens[positions])
        return confidence.new_full(positions.shape, 2.0).masked_scatter(positions, confidence)

    def _noise_keys(self, states: State) -> tuple[Tensor, Tensor, Tensor]:
        """Seed, position and step of each masked position, all of shape (masked positions,)."""
        shape = states.masked.shape
        middle = (1,) * (len(shape) - 2)
        seeds = self.rows.seeds.view(-1, *middle, 1).expand(shape)
        positions = self.rows.positions().view(shape[0], *middle, shape[-1]).expand(shape)
        steps = states.step.unsqueeze(-1).expand(shape)
        return seeds[states.masked], positions[states.masked], steps[states.masked]
