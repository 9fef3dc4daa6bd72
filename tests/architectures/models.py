"""Narrow models of every YAML of conf/backbone without a width, as it is and with other settings."""

import dataclasses
import functools
import zlib
from typing import Any

import hydra
import torch
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from archbench.architectures.backbone import Backbone, BackboneConfig
from archbench.architectures.backbones.hybrid import RECURRENT
from archbench.experiments.config import CONF
from archbench.experiments.config.structured import load_class, typed
from archbench.experiments.run.size_solver import Sizes
from tests.architectures.conformance import enliven
from tests.backbones import CLASSES

VOCABULARY, LONGEST = 29, 80
Values = dict[str, Any]
CANON: tuple[Values, ...] = ({"canon": "ABCD"}, {"canon": "ABC"}, {"canon": "AB"})
OPTIONS: tuple[Values, ...] = (
    {"loops": 2},
    {"mixture_of_depths": 0.3},
    {"attention": {"value_residual": True}},
    {"attention": {"forget_gate": True}},
    {"attention": {"differential": True}},
    {"feedforwards": ["dense", "experts"]},
)
"""Settings of several classes, which go with some backbones only."""
CHANGED = [f"{name} changed" for name in CLASSES]
"""A YAML of each class with canon layers, where they have a place for them, and with two of ``OPTIONS``."""
MIXERS = "hybrid mixers"
"""A hybrid of attention and all mixers, with canon layers."""


@functools.cache
def composed(name: str) -> tuple[type[Backbone], Values]:
    """Return the class and the settings of a YAML at depth two."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        # The root of a command without a run: the smallest to compose.
        cfg = hydra.compose("cost", [f"backbone={name}", "scale.depth=2", "scale.mixer_depth=2"])
    values: Any = OmegaConf.to_container(cfg.backbone, resolve=True)
    return load_class(values.pop("_target_"), Backbone, "backbone"), values  # type: ignore[type-abstract]


@functools.cache
def read_yaml(name: str) -> tuple[type[Backbone], BackboneConfig]:
    """Return the class and the configuration of a YAML, or of its name and ``changed`` or ``mixers``."""
    name, _, how = name.partition(" ")
    cls, values = composed(name)
    if how == "mixers":
        layers = [*sorted(RECURRENT), "attention"]
        values = values | {"layers": layers, "num_layers": len(layers), **CANON[0]}
    for change in changes(name) if how == "changed" else ():
        values = with_change(values, change)
    return cls, typed(cls.Config, values, "backbone")


@functools.cache
def changes(name: str) -> tuple[Values, ...]:
    """Return other settings that go with a YAML and with each other. The name decides which come first, so
    that each goes with some."""
    cls, values = composed(name)
    turn, found = zlib.crc32(name.encode()) % len(OPTIONS), []
    options = (*OPTIONS[turn:], *OPTIONS[:turn])
    for choices in (CANON, ({"conv_width": 0},) if turn % 2 else (), options, options):
        change = next((each for each in choices if each not in found and accepts(cls, values, each)), None)
        if change is not None:
            values = with_change(values, change)
            found.append(change)
    return tuple(found)


def accepts(cls: type[Backbone], values: Values, change: Values) -> bool:
    """Return True if there is a model with these settings and a change of them, and it reads the change."""
    try:
        after = parameters(cls, with_change(values, change))
    except ValueError:
        return False
    # Settings of a layer add parameters, if the model has such a layer.
    return not any(isinstance(value, dict) for value in change.values()) or after != parameters(cls, values)


def parameters(cls: type[Backbone], values: Values) -> list[tuple[str, torch.Size]]:
    """Return the names and the shapes of the parameters of a model, built without memory."""
    sizes = Sizes(vocab_size=VOCABULARY, length=LONGEST)
    model = sizes.on_meta(cls, narrow(typed(cls.Config, values, "backbone")))
    return [(name, parameter.shape) for name, parameter in model.named_parameters()]


def with_change(values: Values, change: Values) -> Values:
    """Return settings with some changed, those of a section one by one."""
    sections = {
        key: {**values.get(key, {}), **each} for key, each in change.items() if isinstance(each, dict)
    }
    return values | change | sections


def narrow(config: BackboneConfig, **settings: Any) -> BackboneConfig:
    """Return a configuration with the smallest width from 16 on."""
    multiple = config.width_multiple
    return dataclasses.replace(config, d_model=multiple * -(-16 // multiple), **settings)


def build(
    name: str, dtype: torch.dtype = torch.float32, vocab_size: int = VOCABULARY, **settings: Any
) -> Backbone:
    """Return a narrow model as it comes from its initialisation."""
    cls, config = read_yaml(name)
    return cls(narrow(config, **settings), vocab_size=vocab_size, max_length=LONGEST).to(dtype)


@functools.cache
def enlivened(name: str, dtype: torch.dtype) -> Backbone:
    torch.manual_seed(0)
    return enliven(build(name, dtype))


def lively(name: str, dtype: torch.dtype = torch.float64, *, training: bool = True) -> Backbone:
    """Return the same with weights large enough for faults to show."""
    return enlivened(name, dtype).train(training)
