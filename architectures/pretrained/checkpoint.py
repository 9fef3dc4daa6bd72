"""Contract of a family of Hugging Face checkpoints: its configuration and its tensors, in both directions.

A family is a subclass of ``Checkpoint`` in a module of this package, where ``families`` finds it: a table of
the keys of config.json (``fields``), settings that all of its models have (``fixed``), and ``rules`` of its
tensors.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.checkpoint_folders import Blueprint
from archbench.architectures.pretrained.fields import Settings, Table, make_config, read_settings, write_keys
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule


class OtherLayersError(ValueError):
    """A model has types of layers that a family does not have: no change of a setting makes it one."""


class Checkpoint(ABC):
    """One family of Hugging Face checkpoints."""

    backbone_class: ClassVar[type[Backbone]]
    """Our class of its models."""
    model_types: ClassVar[tuple[str, ...]]
    """Values of ``model_type`` in config.json that belong to this family."""
    architecture: ClassVar[str]
    """Name of the Hugging Face class."""
    fields: ClassVar[Table]
    """Keys of config.json, and our settings."""
    fixed: ClassVar[Settings] = {}
    """Settings of ours that all models of the family have."""
    wrappers: ClassVar[dict[str, str]] = {}
    """Values of ``model_type`` of models that read images too, and the class of their language model, which
    is of this family. Only the language model is loaded."""
    ignored_in_wrappers: ClassVar[tuple[str, ...]] = ()
    """Keys of ``text_config`` that the classes of ``wrappers`` do not read, unlike that of the language
    model."""
    tie_key: ClassVar[str] = "tie_word_embeddings"
    """Key of config.json that makes the head the token table."""
    aliases: ClassVar[dict[str, str]] = {}
    """Other names that the Hugging Face class accepts for keys of config.json (its ``attribute_map``)."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Regular expressions found in the names of tensors that are not loaded: masks, tables of sines.

    They skip at least what ``_keys_to_ignore_on_load_unexpected`` of the Hugging Face class does.
    """

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        """Return our model for the content of config.json.

        Raises:
            ValueError: names a key with a value that has no counterpart here.
        """
        settings = cls.fixed | read_settings(cls.fields, hf)
        sizes = {name: settings.pop(name) for name in ("vocab_size", "max_length")}
        backbone_class = cls.class_of(settings)
        config = make_config(backbone_class.Config, settings)
        return Blueprint(backbone_class=backbone_class, config=config, **sizes)

    @classmethod
    def class_of(cls, settings: Settings) -> type[Backbone]:
        """Return our class of a model with these settings."""
        return cls.backbone_class

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        """Return config.json for one of our models that the family ``can_express``.

        Settings that the format lacks need no check here: they are found by reading the result back.

        Raises:
            ValueError: the model cannot be expressed at all.
        """
        names = {"architectures": [cls.architecture], "model_type": cls.model_types[0]}
        return names | write_keys(cls.fields, model)

    @classmethod
    @abstractmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        """Return the rules of all tensors. Rules of parameters that the model lacks are removed later."""

    @classmethod
    def can_express(cls, model: Backbone) -> bool:
        """Return True if the family may be able to express a model of this class."""
        return type(model) is cls.backbone_class

    @classmethod
    def without_aliases(cls, hf: HFConfig) -> HFConfig:
        """Return config.json with each alias under its key.

        Raises:
            ValueError: both are there and differ.
        """
        for alias, key in cls.aliases.items():
            value = hf.get(alias)
            if value is not None and hf.get(key) not in (None, value):
                raise ValueError(f"config.json: {alias}={value} and {key}={hf[key]} must be equal")
            hf = hf if value is None else hf | {key: value}
        return hf

    @classmethod
    def complete_config(cls, hf: HFConfig, names: Collection[str]) -> HFConfig:
        """Return config.json with settings that only tensor names tell; a folder without weights has none."""
        return hf

    @classmethod
    def current_name(cls, name: str) -> str:
        """Return the current name of a tensor that older checkpoints name differently."""
        return name

    @classmethod
    def applicable_rules(cls, model: Backbone) -> list[Rule]:
        """Return the rules of the model's parameters; each parameter is in exactly one.

        A readout that is used in training only is left out.

        Raises:
            ValueError: a parameter has no counterpart, such as that of another attached readout.
        """
        parameters = model.state_dict()
        # Of a tied head, ``state_dict`` has both names.
        names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
        rules = [rule for rule in cls.rules(model) if rule.ours[0] in parameters]
        covered = {name for rule in rules for name in rule.ours}
        assert covered <= set(parameters), sorted(covered - set(parameters))
        uncovered = sorted(names & parameters.keys() - covered)
        if getattr(getattr(model, "readout", None), "training_only", False):
            uncovered = [name for name in uncovered if not name.startswith("readout.")]
        if uncovered:
            raise ValueError(f"no tensor of {cls.__name__} holds {', '.join(uncovered[:3])}")
        return rules


@functools.cache
def families() -> tuple[type[Checkpoint], ...]:
    """Return the families of this package, in the order of their modules."""
    checkpoint_classes: list[type[Checkpoint]] = []
    for module in pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}."):
        for value in vars(importlib.import_module(module.name)).values():
            is_defined_here = isinstance(value, type) and value.__module__ == module.name
            if is_defined_here and issubclass(value, Checkpoint) and "model_types" in vars(value):
                checkpoint_classes.append(value)
    return tuple(checkpoint_classes)
