"""Readouts: from hidden states to a class of the sequence, a tag for each token, or a vector.

A readout is attached with ``Backbone.attach_readout``, which calls it with the
hidden states and ``valid_BT`` after every forward pass. Padding, which is on
the right, has no effect.

Shapes: B batch, T length, D d_model, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import init_normal

POOLINGS = ("first", "mean", "last")


def pool(hidden_BTD: Tensor, valid_BT: Tensor | None, pooling: str) -> Tensor:
    """Return a vector (B, D) for each sequence: its ``first`` or ``last`` real token, or the ``mean`` of
    all."""
    if pooling == "first":
        return hidden_BTD[:, 0]
    if valid_BT is None:
        return hidden_BTD[:, -1] if pooling == "last" else hidden_BTD.mean(1)
    length_B = valid_BT.sum(1).clamp_min(1)
    if pooling == "last":
        return hidden_BTD[torch.arange(len(length_B), device=length_B.device), length_B - 1]
    # Chosen, not multiplied by 0: values at padding may be anything, infinite included.
    return hidden_BTD.masked_fill(~valid_BT[..., None], 0.0).sum(1) / length_B[:, None]


class VectorReadout(nn.Module):
    """A vector (B, D) for each sequence, without parameters.

    Args:
        pooling: ``first``, ``mean`` (Reimers and Gurevych 2019, arXiv 1908.10084, section 3) or ``last``.

    Raises:
        ValueError: there is no such pooling.
    """

    def __init__(self, pooling: str) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling={pooling!r} is unknown: use one of {', '.join(POOLINGS)}")
        self.pooling = pooling

    def forward(self, hidden_BTD: Tensor, valid_BT: Tensor | None) -> Tensor:
        return pool(hidden_BTD, valid_BT, self.pooling)


class SequenceReadout(VectorReadout):
    """Scores of the classes of a sequence, shape (B, C).

    Devlin et al. 2019 (arXiv 1810.04805): the first token's state through a
    dense layer and tanh (the pooler), dropout, and a dense layer.

    Args:
        d_model: width of the hidden states.
        num_classes: C.
        pooling: the state that represents the sequence. The first where every token sees every other,
            the last where a token sees only those before it.
        pooler: whether there is the dense layer with tanh.
        dropout: probability of setting an element of the pooled vector to 0 in training.
    """

    def __init__(
        self, d_model: int, num_classes: int, *, pooling: str, pooler: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__(pooling)
        self.pooler = nn.Sequential(nn.Linear(d_model, d_model), nn.Tanh()) if pooler else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(d_model, num_classes)
        init_normal(self)

    def forward(self, hidden_BTD: Tensor, valid_BT: Tensor | None) -> Tensor:
        vector_BD = self.pooler(pool(hidden_BTD, valid_BT, self.pooling))
        return self.classifier(self.dropout(vector_BD))


class TokenReadout(nn.Module):
    """Scores of the tags of every token, shape (B, T, C): dropout and a dense layer (Devlin et al. 2019)."""

    def __init__(self, d_model: int, num_classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(d_model, num_classes)
        init_normal(self)

    def forward(self, hidden_BTD: Tensor, valid_BT: Tensor | None) -> Tensor:
        return self.classifier(self.dropout(hidden_BTD))
