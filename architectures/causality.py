"""A check that the logits of a causal model depend neither on later tokens nor on other sequences.

A layer with zero-initialised weights returns zeros before training, whatever it reads: add noise first.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

TOLERANCE = 1e-3
"""Largest difference of logits by rounding, relative to the largest logit; for float16 and bfloat16 at least
four units of their last digit."""
NOISE = 0.1
"""Standard deviation of noise that gives the layers of most models outputs of the size of trained ones."""


@torch.no_grad()
def add_noise(model: nn.Module, std: float = NOISE, seed: int = 0) -> None:
    """Add normal noise to each parameter in place, so that no part of the model is zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = std * torch.randn(parameter.shape, generator=generator)
        parameter.add_(noise.to(parameter.device))


@torch.no_grad()
def first_leak(logits_of: Callable[[Tensor], Tensor], tokens_BT: Tensor, vocab_size: int) -> int | None:
    """Return the first position whose logits depend on later tokens or on another sequence, or None.

    Each sequence is changed after another position, so that a model which looks ahead only within a chunk is
    detected, too. Where its tokens are unchanged, its logits must not change. One sequence is changed as a
    whole. More sequences detect more: at most 16 are useful.

    Args:
        logits_of: returns the logits (B, T, V) of tokens (B, T), in evaluation. NaN is no difference,
            and infinity counts as 0.
        tokens_BT: token ids, of any content.
        vocab_size: V.
    """
    unchanged_B = _unchanged_tokens(*tokens_BT.shape)
    is_changed_BT = torch.arange(tokens_BT.shape[1]) >= unchanged_B[:, None]
    changed_BT = torch.where(is_changed_BT.to(tokens_BT.device), (tokens_BT + 1) % vocab_size, tokens_BT)
    logits_BTV, changed_BTV = logits_of(tokens_BT), logits_of(changed_BT)
    leaks = []
    # Row by row: differences of a whole batch would take the memory of its logits several times.
    for unchanged, *rows in zip(unchanged_B.tolist(), logits_BTV, changed_BTV, strict=True):
        is_number_TV = ~(rows[0].isnan() | rows[1].isnan())
        before_TV, after_TV = (row_TV.nan_to_num(0.0, 0.0, 0.0) * is_number_TV for row_TV in rows)
        tolerance = max(TOLERANCE, 4 * torch.finfo(before_TV.dtype).eps) * before_TV.abs().max()
        differs_T = (after_TV - before_TV)[:unchanged].abs().amax(1) > tolerance
        leaks += differs_T.nonzero()[:1].flatten().tolist()
    return min(leaks, default=None)


def _unchanged_tokens(num_sequences: int, length: int) -> Tensor:
    """Return how many first tokens of each sequence stay as they are, shape (B,).

    One token shows a leak from the second position to the first, none a leak to other sequences, and all but
    one a leak from the last position. The others are random: multiples of a number may all be ends of chunks.
    """
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(length, (num_sequences,), generator=generator)
    return torch.cat([torch.tensor([1, 0, length - 1]), random])[:num_sequences]
