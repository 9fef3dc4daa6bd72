"""Correspondence of a tensor in a Hugging Face checkpoint with our parameters, in both directions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rule(ABC):
    """Correspondence of one checkpoint tensor with our parameters. ``write`` undoes ``read``, bit for bit."""

    theirs: str
    """Name of the tensor in their checkpoint."""
    ours: tuple[str, ...]
    """Names of the parameters that it holds, in our ``state_dict``."""

    @abstractmethod
    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        """Return our tensors, of these shapes, from theirs."""

    @abstractmethod
    def write(self, ours: Sequence[Tensor]) -> Tensor:
        """Return their tensor from ours; on the meta device only its shape."""

    def within(self, theirs: str, ours: str) -> Rule:
        """Return the same rule with prefixes before the names."""
        return replace(self, theirs=theirs + self.theirs, ours=tuple(ours + name for name in self.ours))


class Same(Rule):
    """Same tensor by another name."""

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [theirs]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0]


class Repeated(Same):
    """Copy of another checkpoint tensor, such as a tied head.

    It may be missing, is never written, and must equal the original where it is present.
    """


class Copied(Repeated):
    """Copy that is written, because the Hugging Face class would initialise a missing tensor randomly."""

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].clone()


class Unused(Copied):
    """Tensor that the Hugging Face class requires but does not use: written as a copy, not read."""


class Row(Rule):
    """Vector stored as a matrix of one row."""

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [theirs[0]]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0][None]


class FixedRow(Row):
    """Vector stored as a matrix of one row, which training leaves as it is: a buffer there."""


class Transposed(Rule):
    """Matrix stored as (in, out), or several of them; vectors are unchanged."""

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [theirs.mT if theirs.ndim > 1 else theirs]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].mT if ours[0].ndim > 1 else ours[0]


class Alternating(Rule):
    """Several of our tensors whose outputs alternate along the last dimension of theirs.

    Matrices of experts (X, out, in) are stored as (X, in, out); their biases are (X, out).
    """

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        parts = theirs.unflatten(-1, (-1, len(self.ours))).unbind(-1)
        return [part.mT if part.ndim > 2 else part for part in parts]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.stack([part.mT if part.ndim > 2 else part for part in ours], dim=-1).flatten(-2)


class Stacked(Rule):
    """Several of our tensors concatenated along the first dimension, as in fused q, k and v."""

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return theirs.split([shape[0] for shape in shapes])

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(ours))


class StackedTransposed(Stacked):
    """Several of our matrices concatenated and stored as (in, out)."""

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return super().read(theirs.mT if theirs.ndim == 2 else theirs, shapes)

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        stacked = super().write(ours)
        return stacked.mT if stacked.ndim == 2 else stacked


@dataclass(frozen=True)
class ByHead(Rule):
    """Fused q, k and v whose rows alternate head by head: q, k, v of head 0, q, k, v of head 1, ..."""

    num_heads: int

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        heads = theirs.unflatten(0, (self.num_heads, len(self.ours), -1))
        return [part.flatten(0, 1) for part in heads.unbind(1)]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        heads = [part.unflatten(0, (self.num_heads, -1)) for part in ours]
        return torch.stack(heads, dim=1).flatten(0, 2)


@dataclass(frozen=True)
class Shifted(Rule):
    """Table with unused rows before ours, such as positions that begin at 2. They are written as zeros."""

    rows: int

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [theirs[self.rows :]]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat([ours[0].new_zeros(self.rows, *ours[0].shape[1:]), ours[0]])


@dataclass(frozen=True)
class Entry(Rule):
    """Entry along the first dimension of our tensor, such as an expert stored as a tensor of its own."""

    index: int

    def read(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [theirs]

    def write(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0][self.index]

    def put(self, entry: Tensor, whole: Tensor) -> Tensor:
        """Return our parameter with this entry filled in; the first entry allocates it."""
        if whole.is_meta:
            whole = entry.new_empty(whole.shape)
        whole.detach()[self.index] = entry
        return whole.detach()


def linear(theirs: str, *ours: str, make: Callable[[str, tuple[str, ...]], Rule] = Same) -> tuple[Rule, Rule]:
    """Return the rules of the weight and the bias of a layer; ``make`` is the class of the rule."""
    weight, bias = (
        make(f"{theirs}.{part}", tuple(f"{name}.{part}" for name in ours)) for part in ("weight", "bias")
    )
    return weight, bias


def head(theirs: str, *, tied: bool, table: str = "embedding.tokens.weight") -> Rule:
    """Return the rule of the language-model head, which is the embedding ``table`` if they are tied."""
    return Repeated(theirs, (table,)) if tied else Same(theirs, ("head.weight",))


def layered(num_layers: int, theirs: str, ours: str, rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules of all layers; ``{}`` in the prefixes is the number of the layer."""
    return [rule.within(theirs.format(i), ours.format(i)) for i in range(num_layers) for rule in rules]
