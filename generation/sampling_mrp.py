"""Which token a masked position would get, and how sure the model is of it.

Sampling is a deterministic function of (logits, noise), and the noise a pure function of (row seed, position, step,
token). So every way of reaching a state draws the same token there, which is what makes speculative decoding lossless
at any temperature, and a row's output independent of the batch around it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

_WORD = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """Scramble 32-bit words held in int64 ("lowbias32", Wellons 2018); products may overflow, their low bits count."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def fold(key: Tensor, value: Tensor | int) -> Tensor:
    """A new key (32-bit word in int64) from a key and a non-negative integer of up to 62 bits."""
    low, high = value & _WORD, value >> 32
    return _mix((_mix((key ^ low) & _WORD) + high + 0x9E3779B9) & _WORD)


def keyed_uniform(key: Tensor) -> Tensor:
    """One float32 in (0, 1) for each key; of 23 bits, so that adding a half stays exact and 1 is never reached."""
    return ((_mix(key) >> 9).float() + 0.5) * 2.0**-23


def keyed_gumbel(seeds: Tensor, positions: Tensor, steps: Tensor, vocab_size: int) -> Tensor:
    """Gumbel noise of shape (points, vocabulary), keyed by each point's (seed, position, step) and by the token."""
    key = fold(fold(fold(torch.zeros_like(seeds), seeds), positions), steps)
    tokens = torch.arange(vocab_size, device=key.device)
    uniform = keyed_uniform(fold(key.unsqueeze(-1), tokens))
    return -(-uniform.log()).log()


def keyed_lot(seeds: Tensor, positions: Tensor, steps: Tensor, vocab_size: int) -> Tensor:
    """One uniform number a point, of a stream of its own: keyed as if by a token behind the vocabulary."""
    key = fold(fold(fold(torch.zeros_like(seeds), seeds), positions), steps)
    return keyed_uniform(fold(key, vocab_size))


@dataclass(frozen=True)
class TokenChooser:
    """Chooses a token for each scored position.

    Attributes:
        suppressed (`Tensor` of shape (suppressed,)): ids that are never chosen; the mask token is always among them.
        warpers (`LogitsProcessorList`, *optional*): temperature and truncation; `None` means greedy.
    """

    suppressed: Tensor
    warpers: LogitsProcessorList | None = None

    @classmethod
    def from_config(cls, config: GenerationConfig, mask_token_id: int, device: torch.device) -> "TokenChooser":
        """Greedy unless `config.do_sample`; a temperature of 0 is greedy too."""
        suppressed = sorted({mask_token_id, *(config.suppress_tokens or ())})
        warpers = None
        if config.do_sample and config.temperature != 0:
            warpers = LogitsProcessorList()
            if config.temperature is not None and config.temperature != 1.0:
                warpers.append(TemperatureLogitsWarper(float(config.temperature)))
            if config.top_k:
                warpers.append(TopKLogitsWarper(config.top_k))
            if config.top_p is not None and config.top_p < 1.0:
                warpers.append(TopPLogitsWarper(config.top_p))
            if config.min_p is not None and config.min_p > 0.0:
                warpers.append(MinPLogitsWarper(config.min_p))
        return cls(torch.tensor(suppressed, device=device), warpers)

    def choose(self, logits: Tensor, seeds: Tensor, positions: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Token and confidence of each point.

        Args:
            logits (`Tensor` of shape (points, vocabulary)): from `suppress`.
            seeds, positions, steps (`Tensor` of shape (points,)): what the noise is keyed by; read when sampling only.

        Returns:
            Tokens and confidences of shape (points,). A confidence is the token's probability under the full softmax
            at temperature 1, whatever temperature and truncation chose the token.
        """
        if self.warpers is None:
            tokens = logits.argmax(-1)
        else:
            no_ids: Any = torch.empty(len(logits), 0, dtype=torch.long, device=logits.device)
            warped = self.warpers(no_ids, logits)
            tokens = (warped + keyed_gumbel(seeds, positions, steps, logits.shape[-1])).argmax(-1)
        return tokens, probability_of(logits, tokens)

    def suppress(self, logits: Tensor) -> Tensor:
        """`logits` in float32 with suppressed tokens at minus infinity; float32 input is changed in place."""
        return logits.float().index_fill_(-1, self.suppressed, -torch.inf)


def probability_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Softmax probability (points,) of `tokens` (points,) under `logits` (points, vocabulary)."""
    return (logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)).exp()


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy (points,), in nats, of the softmax of `logits` (points, vocabulary)."""
    return torch.special.entr(logits.softmax(-1)).sum(-1)
