"""The YAMLs of conf/backbone: those that the solver brings to a size, and presets of known models."""

from omegaconf import OmegaConf

from experiments.config.sections import CONF

_YAMLS = {path.stem: OmegaConf.load(path) for path in sorted((CONF / "backbone").glob("*.yaml"))}
SOLVED = [name for name, yaml in _YAMLS.items() if yaml.get("d_model") is None]
PRESETS = [name for name in _YAMLS if name not in SOLVED]

_FIRST = {_YAMLS[name]["_target_"].rpartition(".")[0]: name for name in reversed(SOLVED)}
FAMILIES = sorted(_FIRST.values())
"""One YAML of each module of architectures/: enough to show what the harness does with a family."""
