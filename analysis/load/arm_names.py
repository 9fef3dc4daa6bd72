"""Names for the arms of a study, and the settings in which they differ.

The name of an arm is unique in its table. If that needs settings, as in ``decoder
kind=alibi``, tables split it again: ``split_name``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from archbench.analysis.load.run_config import readable_config


def arm_names(frame: pd.DataFrame) -> pd.Series:
    """Return the shortest unique name: the backbone; with the objective; with settings; cell and digest.

    Two digests of one cell are two configs, so they are never averaged together.
    """
    identity = frame["cell"] + "-" + frame["digest"]
    table = frame["task"] + " " + frame["scale"]
    return _shortest(
        frame,
        lambda: frame["backbone"] + " " + frame["objective"],
        lambda: frame["backbone"] + _settings(frame, identity, table + " " + frame["backbone"]),
    )


def arm_names_without_folders(frame: pd.DataFrame) -> pd.Series:
    """Return the shortest unique name: the backbone; with the learning rate; cell and digest."""
    return _shortest(
        frame,
        lambda: frame["backbone"] + frame["learning_rate"].map(lambda rate: f" learning_rate={rate:g}"),
    )


def _shortest(frame: pd.DataFrame, *candidates: Callable[[], pd.Series]) -> pd.Series:
    """Return the backbone, where it is no unique name the first candidate that is, else cell and digest."""
    identity = frame["cell"] + "-" + frame["digest"]
    table = frame["task"] + " " + frame["scale"]
    names = frame["backbone"].astype(str)
    for longer in (*candidates, lambda: identity):
        shared = identity.groupby([table, names]).transform("nunique") > 1
        if shared.any():
            names = names.where(~shared, longer())
    return names


def _settings(frame: pd.DataFrame, identity: pd.Series, group: pd.Series) -> pd.Series:
    """Return the settings by which the configs of a group differ, as " key=value key=value"."""
    flat = {str(key): readable_config(paths) for key, paths in frame["path"].groupby(identity)}
    suffixes: dict[str, str] = {}
    for keys in identity.groupby(group).unique():
        settings = sorted({setting for key in keys for setting in flat[key]})
        values = {s: tuple(repr(flat[key].get(s)) for key in keys) for s in settings}
        # A setting that only follows another of its name (``backbone.block_length``) adds no information.
        followed = {(s.split(".")[-1], values[s]): s for s in settings if len(set(values[s])) > 1}
        varied = sorted(followed.values())
        last = [setting.split(".")[-1] for setting in varied]
        short = {s: name if last.count(name) == 1 else s for s, name in zip(varied, last, strict=True)}
        for key in keys:
            suffixes[key] = "".join(f" {short[s]}={setting_text(flat[key].get(s))}" for s in varied)
    return identity.map(suffixes)


def split_name(arm: str) -> tuple[str, dict[str, str]]:
    """Return the name of an arm without its settings, and these by key."""
    parts = arm.split(" ")
    start = next((i for i, part in enumerate(parts) if "=" in part), len(parts))
    settings: dict[str, str] = {}
    for part in parts[start:]:
        key, equals, value = part.partition("=")
        if equals:
            settings[key] = value
        else:  # a value with a space in it
            settings[[*settings][-1]] += f" {part}"
    return " ".join(parts[:start]), settings


def setting_text(value: Any) -> Any:
    """Return a list, such as layer types, in short, as ``mamba*3,attention``; other values as they are."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def config_differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each deciding setting in which the arms of a task and scale differ.

    Columns: ``task scale setting``, then one for each arm, by its first run that left a configuration.
    """
    rows = []
    for (task, scale), group in frame.groupby(["task", "scale"], sort=True):
        flat = {}
        for arm, runs in group.groupby("arm", sort=True):
            if config := readable_config(runs["path"]):
                flat[str(arm)] = config
        for setting in sorted({setting for config in flat.values() for setting in config}):
            values = {arm: config.get(setting) for arm, config in flat.items()}
            if len({repr(value) for value in values.values()}) > 1:
                texts = {arm: setting_text(value) for arm, value in values.items()}
                rows.append({"task": task, "scale": scale, "setting": setting, **texts})
    return pd.DataFrame(rows, columns=None if rows else ["task", "scale", "setting"])
