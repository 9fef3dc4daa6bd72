"""What a family of Hugging Face checkpoints is: its configuration and its tensors, in both directions.

A family is a class of a module in this package, and is found there.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from architectures.backbone import Backbone, BackboneConfig
from architectures.pretrained.tensor_rules import Rule


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """All that building a model needs."""

    backbone_class: type[Backbone]
    config: BackboneConfig
    """Every width settled."""
    vocab_size: int
    max_length: int
    """Tokens it was made for."""

    def build(self) -> Backbone:
        """The model, freshly drawn."""
        return self.backbone_class(self.config, vocab_size=self.vocab_size, max_length=self.max_length)


class Checkpoint(ABC):
    """One family of Hugging Face checkpoints."""

    backbone_class: ClassVar[type[Backbone]]
    """What its models are here."""
    model_types: ClassVar[tuple[str, ...]]
    """The values of ``model_type`` in config.json that are this family."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Regular expressions of whole tensor names that hold nothing to load: masks, tables of sines."""

    @classmethod
    @abstractmethod
    def read_config(cls, hf: dict[str, Any]) -> Blueprint:
        """Our model from the content of config.json.

        Raises:
            ValueError: names a key whose value has no counterpart here.
        """

    @classmethod
    @abstractmethod
    def write_config(cls, model: Backbone) -> dict[str, Any]:
        """The content of config.json for one of our models, as far as the format can say it.

        Nothing need be checked: what is lost is found by reading it back. Only models that it
        ``expresses`` are given. ValueError is for what cannot be expressed at all.
        """

    @classmethod
    @abstractmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        """The correspondence of tensors. Rules of parameters that the model lacks are left out later."""

    @classmethod
    def expresses(cls, model: Backbone) -> bool:
        """Whether models of this class are its business."""
        return type(model) is cls.backbone_class

    @classmethod
    def clarify(cls, hf: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
        """config.json with what only the tensors' names tell; there are none in a folder without weights."""
        return hf

    @classmethod
    def canonical(cls, name: str) -> str:
        """Today's name of a tensor, where older checkpoints have another."""
        return name

    @classmethod
    def absorb(cls, hf: dict[str, Any], name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor there, times whatever config.json multiplies its results by."""
        return tensor

    @classmethod
    def matching(cls, model: Backbone) -> list[Rule]:
        """The rules of the parameters that the model has, each of them in exactly one.

        Raises:
            ValueError: a parameter has no counterpart, such as that of an attached readout.
        """
        own = model.state_dict()
        rules = [rule for rule in cls.rules(model) if rule.ours[0] in own]
        known = {name for rule in rules for name in rule.ours}
        assert known <= set(own), sorted(known - set(own))
        left = sorted(set(own) - known - _tied(model))
        if left:
            raise ValueError(f"no tensor of {cls.__name__} holds {', '.join(left[:3])}")
        return rules


def families() -> list[type[Checkpoint]]:
    """The families of this package, in the order of their modules."""
    found: list[type[Checkpoint]] = []
    for module in pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}."):
        for value in vars(importlib.import_module(module.name)).values():
            own = isinstance(value, type) and value.__module__ == module.name
            if own and issubclass(value, Checkpoint) and "model_types" in vars(value):
                found.append(value)
    return found


def require(hf: dict[str, Any], key: str, *allowed: Any, default: Any = None) -> Any:
    """The value of a key of config.json, one of those supported.

    Raises:
        ValueError: names key, value and what is supported.
    """
    value = hf.get(key, default)
    if value not in allowed:
        raise ValueError(
            f"config.json: {key}={value!r} is not supported, only {' or '.join(map(repr, allowed))}"
        )
    return value


def given(hf: dict[str, Any], key: str) -> Any:
    """The value of a key that config.json must have. Raises ValueError where it is missing."""
    if hf.get(key) is None:
        raise ValueError(f"config.json: {key} is missing")
    return hf[key]


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
}
"""Our names of their activations; the first of several of the same meaning is written."""


def read_activation(hf: dict[str, Any], key: str, default: str) -> str:
    """Our name of an activation in config.json. Raises ValueError for one that is not supported."""
    return ACTIVATIONS[require(hf, key, *ACTIVATIONS, default=default)]


def write_activation(ours: str) -> str:
    """Their name of an activation of ours."""
    return next(name for name, value in ACTIVATIONS.items() if value == ours)


def _tied(model: torch.nn.Module) -> set[str]:
    """Names of tensors that only repeat an earlier one: a tied head."""
    once = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return set(model.state_dict()) - once
