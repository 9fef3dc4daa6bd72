"""Correspondence of a tensor in a Hugging Face checkpoint with our parameters, in both directions.

The rules of attention, feed-forward and experts at the end are those of multiple families, in Llama's names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        """Return our tensors, of these shapes, from the Hugging Face tensor."""

    @abstractmethod
    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the Hugging Face tensor from ours; on the meta device only its shape."""

    def within(self, hf_prefix: str, prefix: str) -> Rule:
        """Return the same rule with prefixes before the names."""
        return replace(self, theirs=hf_prefix + self.theirs, ours=tuple(prefix + name for name in self.ours))


class Same(Rule):
    """Same tensor by another name."""

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [hf_tensor]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0]


class Repeated(Same):
    """Copy of another checkpoint tensor, such as a tied head.

    It may be missing, is never written, and must equal the original where it is present.
    """


class Copied(Repeated):
    """Copy that is written, because the Hugging Face class would initialise a missing tensor randomly."""

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].clone()


class Unused(Copied):
    """Tensor that the Hugging Face class requires but does not use: written as a copy, not read."""


class Row(Rule):
    """Vector stored as a matrix of one row."""

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [hf_tensor[0]]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0][None]


class FixedRow(Row):
    """Vector stored as a matrix of one row, which training leaves as it is: a buffer there."""


class Transposed(Rule):
    """Matrix stored as (in, out), or a stack of them; vectors are unchanged."""

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [hf_tensor.mT if hf_tensor.ndim > 1 else hf_tensor]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].mT if tensors[0].ndim > 1 else tensors[0]


class Alternating(Rule):
    """Multiple tensors with outputs that alternate along the last dimension of the Hugging Face tensor.

    Matrices of experts (X, out, in) are stored as (X, in, out); their biases are (X, out).
    """

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        parts = hf_tensor.unflatten(-1, (-1, len(self.ours))).unbind(-1)
        return [part.mT if part.ndim > 2 else part for part in parts]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack([part.mT if part.ndim > 2 else part for part in tensors], dim=-1).flatten(-2)


class Stacked(Rule):
    """Multiple tensors concatenated along the first dimension, as in fused q, k and v."""

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return hf_tensor.split([shape[0] for shape in shapes])

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(tensors))


class StackedTransposed(Stacked):
    """Multiple matrices concatenated and stored as (in, out)."""

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return super().read(hf_tensor.mT if hf_tensor.ndim == 2 else hf_tensor, shapes)

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        stacked = super().write(tensors)
        return stacked.mT if stacked.ndim == 2 else stacked


@dataclass(frozen=True)
class ByHead(Rule):
    """Fused q, k and v with rows that alternate head by head: q, k, v of head 0, q, k, v of head 1, ..."""

    num_heads: int

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        heads = hf_tensor.unflatten(0, (self.num_heads, len(self.ours), -1))
        return [part.flatten(0, 1) for part in heads.unbind(1)]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        heads = [part.unflatten(0, (self.num_heads, -1)) for part in tensors]
        return torch.stack(heads, dim=1).flatten(0, 2)


@dataclass(frozen=True)
class Shifted(Rule):
    """Table with unused rows before ours, such as positions that begin at 2. They are written as zeros."""

    rows: int

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [hf_tensor[self.rows :]]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensors[0].new_zeros(self.rows, *tensors[0].shape[1:]), tensors[0]])


@dataclass(frozen=True)
class Entry(Rule):
    """Entry along the first dimension of our tensor, such as an expert stored as a separate tensor."""

    index: int

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [hf_tensor]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0][self.index]

    def put(self, entry: Tensor, parameter: Tensor) -> Tensor:
        """Return our parameter with this entry filled in; the first entry allocates it."""
        if parameter.is_meta:
            parameter = entry.new_empty(parameter.shape)
        parameter.detach()[self.index] = entry
        return parameter.detach()


def linear(
    hf_name: str, *names: str, make: Callable[[str, tuple[str, ...]], Rule] = Same
) -> tuple[Rule, Rule]:
    """Return the rules of the weight and the bias of a layer; ``make`` is the class of the rule."""
    weight, bias = (
        make(f"{hf_name}.{part}", tuple(f"{name}.{part}" for name in names)) for part in ("weight", "bias")
    )
    return weight, bias


def head(hf_name: str, *, tied: bool, table: str = "embedding.tokens.weight") -> Rule:
    """Return the rule of the language-model head, which is the embedding ``table`` if they are tied."""
    return Repeated(hf_name, (table,)) if tied else Same(hf_name, ("head.weight",))


def layered(num_layers: int, hf_prefix: str, prefix: str, rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules of all layers; ``{}`` in the prefixes is the index of the layer."""
    return [rule.within(hf_prefix.format(i), prefix.format(i)) for i in range(num_layers) for rule in rules]


ATTENTION: tuple[Rule, ...] = (
    *linear("self_attn.q_proj", "mixer.q"),
    *linear("self_attn.k_proj", "mixer.k"),
    *linear("self_attn.v_proj", "mixer.v"),
    *linear("self_attn.o_proj", "mixer.out"),
    Same("self_attn.q_norm.weight", ("mixer.q_norm.weight",)),
    Same("self_attn.k_norm.weight", ("mixer.k_norm.weight",)),
)
FEEDFORWARD: tuple[Rule, ...] = (
    *linear("mlp.gate_proj", "feedforward.gate"),
    *linear("mlp.up_proj", "feedforward.up"),
    *linear("mlp.down_proj", "feedforward.down"),
)
PROJECTIONS = {"gate_proj": "gate_XFD", "up_proj": "up_XFD", "down_proj": "down_XDF"}
"""Names of an expert's matrices in most Hugging Face families, and ours."""


def expert_rules(count: int, hf_prefix: str, names: Mapping[str, str] = PROJECTIONS) -> list[Rule]:
    """Return the rules of experts that are stored as one tensor each; ``{}`` in the prefix is the expert."""
    return [
        Entry(f"{hf_prefix.format(index)}.{name}.weight", (f"feedforward.{parameter}",), index)
        for index in range(count)
        for name, parameter in names.items()
    ]


def shared_rules(hf_prefix: str) -> list[Rule]:
    """Return the rules of the shared experts."""
    names = [(name, name.removesuffix("_proj")) for name in PROJECTIONS]
    return [
        Same(f"{hf_prefix}.{name}.weight", (f"feedforward.shared.{parameter}.weight",))
        for name, parameter in names
    ]
