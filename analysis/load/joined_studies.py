"""Join the runs of several studies, where these can be compared.

Studies that share a task at one scale must have the same data and the same score. What else differs between
them is in the column ``studies_differ``, for tables to say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.run_config import UnreadableError, flat_config
from experiments.runtime.console import plural

TASK_SCALE = ["task", "scale"]
SCORING = {
    "metric": "metrics", "unit": "units", "direction": "directions", "averaging": "averagings",
    "estimator": "estimators", "score_samples": "samples of the estimator", "score_items": "scored items",
    "score_setting": "scoring",
}  # fmt: skip
"""Columns that say what a score is, and the word for several of each."""
SHARED = ("task", "scale", "budget", "optimizer", "objective", "evaluation")
"""Sections of a configuration that are compared between studies; backbones are what a study varies."""
CONDITIONS = {
    "git_code": "code", "device_processor": "processor", "device_threads": "threads",
    "device_precision": "precision",
}  # fmt: skip
"""Columns of the conditions under which runs were made."""
MOST_VALUES = 4
"""Values of a setting that are listed for a study."""


def join_studies(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the runs of some studies as one frame. A run that several have counts once, in the first.

    Args:
        frames: of one study each, from ``analysis.load.study``.

    Raises:
        ValueError: two of them cannot be compared; the message says where and why.
    """
    for number, frame in enumerate(frames):
        for other in frames[:number]:
            _check(other, frame)
    joined = pd.concat(frames, ignore_index=True)
    again = joined.duplicated(["cell", "digest", "seed"])
    differ = _settings(frames) + _conditions(frames)
    if again.any():
        words = "is in several of the studies and counts" if again.sum() == 1 else "are in several and count"
        differ.append(f"{plural(again.sum(), 'run')} {words} once")
    return joined[~again].reset_index(drop=True).assign(studies_differ=json.dumps(differ))


def _check(first: pd.DataFrame, second: pd.DataFrame) -> None:
    """Raise ValueError where two studies share a task at one scale, but neither data nor score."""
    names = [str(frame["study"].iloc[0]) for frame in (first, second)]
    keys = [frame.groupby([*TASK_SCALE, "likelihood"], dropna=False) for frame in _scored(first, second)]
    for key in [key for key in keys[0].groups if key in keys[1].groups]:
        for column, words in {"fingerprint": "data (fingerprints)", **SCORING}.items():
            values = [_values(group.get_group(key), column) for group in keys]
            if all(values) and values[0] != values[1]:
                said = " and ".join(f"{name} {', '.join(v)}" for name, v in zip(names, values, strict=True))
                where = ", ".join(str(part) for part in key if isinstance(part, str))
                raise ValueError(
                    f"study={','.join(names)} cannot be compared on {where}: other {words}, {said}; compare "
                    "each alone, or train one again"
                )


def _scored(*frames: pd.DataFrame) -> list[pd.DataFrame]:
    return [frame[frame["status"] == "complete"] for frame in frames]


def _values(runs: pd.DataFrame, column: str) -> list[str]:
    """Return the known values of a column as text, in order."""
    known = runs[column].dropna().unique() if column in runs else []
    return sorted(f"{value:g}" if isinstance(value, float) else str(value) for value in known)


def _settings(frames: list[pd.DataFrame]) -> list[str]:
    """Return the settings that the studies have not in common, as sentences."""
    values: dict[str, dict[str, list[str]]] = {}
    for frame in frames:
        study = str(frame["study"].iloc[0])
        for path in frame["path"]:
            for setting, value in _config(Path(path)).items():
                known = values.setdefault(setting, {}).setdefault(study, [])
                if (text := _text(value)) not in known:
                    known.append(text)
    differing = {s: of for s, of in values.items() if len({tuple(sorted(v)) for v in of.values()}) > 1}
    return [f"{setting} is {_listed(differing[setting])}" for setting in sorted(differing)]


def _config(path: Path) -> dict[str, Any]:
    try:
        return flat_config(path, SHARED)
    except UnreadableError:
        return {}


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _conditions(frames: list[pd.DataFrame]) -> list[str]:
    """Return the conditions that differ between the studies, as sentences."""
    found = []
    for column, words in CONDITIONS.items():
        values = {str(frame["study"].iloc[0]): _values(frame, column) for frame in frames}
        if len({tuple(v) for v in values.values() if v}) > 1:
            long = any(len(text) > 24 for v in values.values() for text in v)
            found.append(f"{words} differ" if long else f"{words} is {_listed(values)}")
    if packages := mixed_packages(pd.concat(frames)):
        found.append(f"package versions differ ({', '.join(packages)})")
    return found


def mixed_packages(runs: pd.DataFrame) -> list[str]:
    """Return the packages of which runs had different versions, each with its versions.

    Runs that did not record a package count for none: what only a user's own code imports is recorded only
    by the runs that use it.
    """
    versions: dict[str, set[str]] = {}
    for text in runs["versions"].dropna().unique():
        for package, version in json.loads(text).items():
            versions.setdefault(package, set()).add(version)
    return [
        f"{package} {' and '.join(sorted(own))}" for package, own in sorted(versions.items()) if len(own) > 1
    ]


def _listed(values: dict[str, list[str]]) -> str:
    """Return ``1 in a, 2 in b``."""
    parts = []
    for study, own in values.items():
        more = f" and {len(own) - MOST_VALUES} more" * (len(own) > MOST_VALUES)
        parts.append(f"{' or '.join(sorted(own)[:MOST_VALUES])}{more} in {study}")
    return ", ".join(parts)
