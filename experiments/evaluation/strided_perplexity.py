"""Perplexity of one long text by the recipe of the ``transformers`` documentation (fixed-length models).

A window slides over the tokens; each scores the tokens that the one before it did not reach. As in the
recipe, the mean loss of a window counts for one token less than it scores, whether or not its first
token has none before it.

Shapes: T window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from architectures.backbone import Backbone
from experiments.runtime.device import inference
from experiments.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class StridedPerplexity:
    """The perplexity of a text, and how it was cut."""

    perplexity: float
    tokens: int
    """Tokens that the recipe divides by."""
    window: int
    """Tokens in a window."""
    stride: int
    """Tokens between the beginnings of windows."""

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.4f} over {self.tokens} tokens (windows of {self.window} tokens, "
            f"{self.stride} apart; recipe of fixed-length models)"
        )


def strided_perplexity(
    model: Backbone, tokens: Sequence[int], *, window: int | None, stride: int | None, precision: str
) -> StridedPerplexity:
    """Return the perplexity of a text; by default windows are as long as the model reads, side by side.

    Raises:
        ConfigError: the model does not read from left to right, or the text or a setting does not fit.
    """
    window = model.max_length if window is None else window
    stride = window if stride is None else stride
    if not model.capabilities.causal:
        raise ConfigError(f"text: {type(model).__name__} does not read from left to right: leave it out")
    if not 2 <= window <= model.max_length:
        raise ConfigError(f"window={window} must lie in 2 to {model.max_length}, the length of the model")
    if not 1 <= stride <= window:
        raise ConfigError(f"stride={stride} must lie in 1 to window={window}")
    if len(tokens) < 2:
        raise ConfigError(f"text: it has {len(tokens)} tokens: give at least 2")
    device = next(model.parameters()).device
    nats = counted = reached = 0.0
    with inference(model, device, precision):
        for begin in range(0, len(tokens), stride):
            end = min(begin + window, len(tokens))
            tokens_1T = torch.tensor([tokens[begin:end]], device=device)
            new = int(end - reached)
            # The first token of a text has no context, so it is read and not scored.
            scored = min(new, end - begin - 1)
            logits_TV = model(tokens_1T).logits_BTV[0, -scored - 1 : -1]
            loss = torch.nn.functional.cross_entropy(logits_TV.float(), tokens_1T[0, -scored:])
            nats += loss.item() * (new - 1)
            counted += new - 1
            reached = end
            if end == len(tokens):
                break
    return StridedPerplexity(
        perplexity=math.exp(nats / counted), tokens=int(counted), window=window, stride=stride
    )
