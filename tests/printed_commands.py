"""Checks a command that an output tells a person to type: it parses, composes, and names what is there."""

from __future__ import annotations

import functools
import importlib
import re
import shlex
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser

from archbench.analysis.declared.tracks import read_track
from archbench.experiments.cli import MODULES, find_command
from archbench.experiments.config import CONF
from archbench.experiments.config.options import typed_words
from archbench.slurm import prepare, submit
from tests import ROOT, SOURCE

ROOTS = {
    "archbench.experiments.train": "config",
    "archbench.experiments.plan": "config",
    "archbench.experiments.prepare": "config",
    "archbench.experiments.benchmark": "benchmark",
    "archbench.experiments.evaluate": "evaluate",
}
"""Commands of Hydra, and the root of their configurations."""
COMMAND = re.compile(r"(?:python -m archbench\.|archbench [a-z])[^`<\n]*")
"""A command in a text."""


def check(command: str) -> None:
    """Raise where a command cannot be typed as it is; compose the first cell of a sweep."""
    words = shlex.split(command)
    while "=" in words[0]:  # variables of the environment
        del words[0]
    if words[0] == "archbench":
        name, words = find_command(words[1:])
        module = MODULES[name]
    elif words[:2] == ["python", "-m"]:
        module, words = words[2], words[3:]
    else:
        assert words[0] == "python", command
        assert (ROOT / words[1]).is_file(), command
        return
    if module in ROOTS:
        _check_hydra(ROOTS[module], words)
    elif module == "archbench.slurm.submit":
        _check_hydra("config", submit.split(words)[1])
    elif module == "archbench.slurm.prepare":
        prepare.split(words)
    else:
        _check_analysis(module, words)


def _check_hydra(root: str, words: list[str]) -> None:
    words = [word for word in words if word not in ("-m", "--multirun")]
    for key, _, value in (word.partition("=") for word in words):
        if root == "evaluate" and key == "run":
            assert Path(value).is_dir(), value
    own = {word.partition("=")[0] for word in words}
    studies = [word for word in words if word.startswith("study=")]
    cell = [_first(f"{key}={value}") for key, value in _swept(*studies).items() if key not in own]
    _compose(root, *cell, *map(_first, words))


@functools.cache
def _swept(*study: str) -> dict[str, str]:
    """Return the sweep of a study."""
    if not study:
        return {}
    _compose("config", *study)
    return dict(HydraConfig.instance().cfg.hydra.sweeper.get("params") or {})


def _first(word: str) -> str:
    """Return a word with the first of the values that it sweeps over."""
    override = OverridesParser.create().parse_override(word)
    if not override.is_sweep_override():
        return word
    return f"{word.partition('=')[0]}={next(iter(override.sweep_string_iterator()))}"


@functools.cache
def _compose(root: str, *words: str) -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose(root, overrides=list(words), return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    assert cfg


def _check_analysis(module: str, words: list[str]) -> None:
    """Read the arguments of a command of the analysis by the dataclass that its module defines."""
    names = importlib.import_module(
        f"{module}.__main__" if (SOURCE / module.replace(".", "/")).is_dir() else module
    )
    [config] = [
        each for name, each in vars(names).items()
        if name.endswith("Config") and is_dataclass(each) and each.__module__ == names.__name__
    ]  # fmt: skip
    if module == "archbench.analysis.track" and "=" not in words[0]:
        words = [f"track={words[0]}", *words[1:]]
    read: Any = typed_words(config, words)
    if module == "archbench.analysis.track":
        track = read_track(read.track)
        assert set(filter(None, read.workloads.split(","))) <= {w.name for w in track.workloads}
        assert set(filter(None, read.backbones.split(","))) <= set(track.backbones)
