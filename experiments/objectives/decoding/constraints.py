"""Constraints on generated text: n-grams that must not repeat, forced and forbidden tokens, least lengths.

They are those of the ``transformers`` library, by its names and in its order. Its repetition penalty is
among the settings of sampling.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Rules of which tokens may be generated where. The defaults allow everything."""

    no_repeat_ngram_size: int = 0
    """N-grams of this length occur once at most, the prompt of a decoder included; 0 for no limit."""
    min_length: int = 0
    """Tokens, those of the decoder's prompt included, before a text may end."""
    min_new_tokens: int = 0
    """Generated tokens before a text may end."""
    forced_bos_token_id: int | None = None
    """The first token after a prompt of a single token, such as a decoder's start."""
    forced_eos_token_id: tuple[int, ...] = ()
    """The last token, where a text is as long as it may become."""
    suppress_tokens: tuple[int, ...] = ()
    """Tokens that are never generated."""
    begin_suppress_tokens: tuple[int, ...] = ()
    """Tokens that are not generated first."""

    def __post_init__(self) -> None:
        for name in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 or more")

    @property
    def any(self) -> bool:
        """True where something is constrained."""
        return self != Constraints()

    def apply(
        self,
        scores_RV: Tensor,
        prompts: Sequence[Sequence[int]],
        written: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        stop: Collection[int],
    ) -> Tensor:
        """Return the scores of the next token, -inf where it may not be; ``prompts`` are the decoder's."""
        scores_RV = scores_RV.clone()
        for scores_V, prompt, generated in zip(scores_RV, prompts, written, strict=True):
            self._apply(scores_V, [*prompt, *generated], len(generated), max_tokens, stop)
        return scores_RV

    def _apply(
        self, scores_V: Tensor, tokens: Sequence[int], new: int, max_tokens: int, stop: Collection[int]
    ) -> None:
        scores_V[list(_repeating(tokens, self.no_repeat_ngram_size))] = -torch.inf
        if len(tokens) < self.min_length or new < self.min_new_tokens:
            scores_V[list(stop)] = -torch.inf
        if self.forced_bos_token_id is not None and len(tokens) == 1:
            _force(scores_V, (self.forced_bos_token_id,))
        if self.forced_eos_token_id and new == max_tokens - 1:
            _force(scores_V, self.forced_eos_token_id)
        scores_V[list(self.suppress_tokens)] = -torch.inf
        forced_first = self.forced_bos_token_id is not None and len(tokens) - new == 1
        if new == int(forced_first):
            scores_V[list(self.begin_suppress_tokens)] = -torch.inf


def _force(scores_V: Tensor, tokens: Sequence[int]) -> None:
    scores_V.fill_(-torch.inf)
    scores_V[list(tokens)] = 0.0


def _repeating(tokens: Sequence[int], size: int) -> set[int]:
    """Return the tokens that would repeat an n-gram of this size."""
    if size == 0 or len(tokens) + 1 < size:
        return set()
    begun = tuple(tokens[len(tokens) + 1 - size :])
    return {
        tokens[i + size - 1]
        for i in range(len(tokens) - size + 1)
        if tuple(tokens[i : i + size - 1]) == begun
    }
