"""The YAMLs of conf/backbone: those that the solver brings to a size, and presets of known models."""

import functools

from omegaconf import OmegaConf

from archbench.architectures.backbone import Backbone
from archbench.experiments.config import CONF
from archbench.experiments.config.structured import load_class

_YAMLS = {path.stem: OmegaConf.load(path) for path in sorted((CONF / "backbone").glob("*.yaml"))}
SOLVED = [name for name, yaml in _YAMLS.items() if yaml.get("d_model") is None]
PRESETS = [name for name in _YAMLS if name not in SOLVED]

_FIRST = {_YAMLS[name]["_target_"].rpartition(".")[0]: name for name in reversed(SOLVED)}
CLASSES = sorted({_YAMLS[name]["_target_"]: name for name in reversed(SOLVED)}.values())
"""One YAML of each class."""
FAMILIES = sorted(_FIRST.values())
"""One YAML of each module of architectures/: enough to show what the harness does with a family."""


@functools.cache
def class_of(name: str) -> type[Backbone]:
    """Return the class that a YAML names, without composing a configuration."""
    cls: type[Backbone] = load_class(_YAMLS[name]["_target_"], Backbone, "backbone")  # type: ignore[type-abstract]
    return cls
