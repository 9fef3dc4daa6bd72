"""Names for the arms of a study, and the settings in which they differ.

The name of an arm tells it from all others of its table. Where it needs settings for that, as in ``decoder
kind=alibi``, tables split it again: ``split_name``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.run_config import UnreadableError, flat_config


def arm_names(frame: pd.DataFrame) -> pd.Series:
    """The shortest unique one of backbone, and objective, or and settings; else cell and digest.

    Two digests of one cell are two configs, so they are never averaged together.
    """
    identity = frame["cell"] + "-" + frame["digest"]
    place = frame["task"] + " " + frame["scale"]
    names = frame["backbone"].astype(str)
    candidates = (
        lambda: frame["backbone"] + " " + frame["objective"],
        lambda: frame["backbone"] + _settings(frame, identity, place + " " + frame["backbone"]),
        lambda: identity,
    )
    for longer in candidates:
        shared = identity.groupby([place, names]).transform("nunique") > 1
        if shared.any():
            names = names.where(~shared, longer())
    return names


def _settings(frame: pd.DataFrame, identity: pd.Series, group: pd.Series) -> pd.Series:
    """The settings by which the configs of a group differ, as " key=value key=value"."""
    flat = {str(key): _config(paths) for key, paths in frame["path"].groupby(identity)}
    words: dict[str, str] = {}
    for keys in identity.groupby(group).unique():
        settings = sorted({setting for key in keys for setting in flat[key]})
        values = {s: tuple(repr(flat[key].get(s)) for key in keys) for s in settings}
        # A setting that only follows another of its name (``backbone.block_length``) says nothing new.
        followed = {(s.split(".")[-1], values[s]): s for s in settings if len(set(values[s])) > 1}
        varied = sorted(followed.values())
        last = [setting.split(".")[-1] for setting in varied]
        short = {s: name if last.count(name) == 1 else s for s, name in zip(varied, last, strict=True)}
        for key in keys:
            words[key] = "".join(f" {short[s]}={setting_text(flat[key].get(s))}" for s in varied)
    return identity.map(words)


def _config(paths: Iterable[str]) -> dict[str, Any]:
    """Return the configuration of the first of some runs that left one; they share their settings."""
    for path in paths:
        try:
            if config := flat_config(Path(path)):
                return config
        except UnreadableError:  # its row says so
            continue
    return {}


def split_name(arm: str) -> tuple[str, dict[str, str]]:
    """Return the name of an arm without its settings, and these by key."""
    words = arm.split(" ")
    first = next((i for i, word in enumerate(words) if "=" in word), len(words))
    settings: dict[str, str] = {}
    for word in words[first:]:
        key, equals, value = word.partition("=")
        if equals:
            settings[key] = value
        else:  # a value with a space in it
            settings[[*settings][-1]] += f" {word}"
    return " ".join(words[:first]), settings


def setting_text(value: Any) -> Any:
    """Return a list, such as layer types, in short, as ``mamba*3,attention``; other values as they are."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def config_differences(frame: pd.DataFrame) -> pd.DataFrame:
    """The deciding settings in which the arms of a task and scale differ: a row each, ``task scale setting``,
    then a column for each arm, by its first run that left a configuration."""
    rows = []
    for (task, scale), group in frame.groupby(["task", "scale"], sort=True):
        flat = {}
        for arm, runs in group.groupby("arm", sort=True):
            if config := _config(runs["path"]):
                flat[str(arm)] = config
        for setting in sorted({setting for config in flat.values() for setting in config}):
            values = {arm: config.get(setting) for arm, config in flat.items()}
            if len({repr(value) for value in values.values()}) > 1:
                texts = {arm: setting_text(value) for arm, value in values.items()}
                rows.append({"task": task, "scale": scale, "setting": setting, **texts})
    return pd.DataFrame(rows, columns=None if rows else ["task", "scale", "setting"])
