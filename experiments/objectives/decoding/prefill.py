"""The prompts of a generation, and their prefill: the step before the first generated token.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.decoding_state import DecodingState


@dataclass(kw_only=True)
class PrefillState:
    """The decoding state and the tokens to prefill before the first token is generated."""

    state: DecodingState
    """Empty but for the source, with space for prompt and generated tokens."""
    unread_BT: Tensor
    """Tokens of the prompts, to be prefilled."""
    valid_BT: Tensor | None = None
    """False at padding on the right; None when all are real."""


def pad_right(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Pad token lists to a tensor (B, T); return it and True where it is real, or None if none is padded."""
    longest = max(len(row) for row in rows)
    tokens_BT = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=device).long()
    if all(len(row) == longest for row in rows):
        return tokens_BT, None
    length_B1 = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens_BT, torch.arange(longest, device=device) < length_B1


def prefill(model: Backbone, start: PrefillState) -> Tensor:
    """Prefill the prompts; return the logits (B, V) after the last token of each."""
    logits_BTV = model.step(start.unread_BT, start.state, start.valid_BT)
    if start.valid_BT is None:
        return logits_BTV[:, -1]
    rows_B = torch.arange(len(logits_BTV), device=logits_BTV.device)
    return logits_BTV[rows_B, start.valid_BT.sum(1) - 1]


def prompt_rows(start: PrefillState) -> list[list[int]]:
    """Return the tokens of each prompt."""
    tokens_BT, valid_BT = start.unread_BT, start.valid_BT
    lengths = [tokens_BT.shape[1]] * len(tokens_BT) if valid_BT is None else valid_BT.sum(1).tolist()
    return [row[:length] for row, length in zip(tokens_BT.tolist(), lengths, strict=True)]
