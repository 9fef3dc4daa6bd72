"""Join the runs of multiple studies, if they can be compared.

Studies that share a task at one scale must have the same data and the same score. Other differences between
them are in the column ``studies_differ``, which tables print.
"""

from __future__ import annotations

import json

import pandas as pd

from archbench.analysis.load.arm_names import setting_text
from archbench.analysis.load.run_config import readable_config
from archbench.analysis.load.scale_order import TASK_SCALE
from archbench.experiments.runtime.console import plural

SCORING = {
    "metric": "metrics", "unit": "units", "direction": "directions", "averaging": "averagings",
    "estimator": "estimators", "score_samples": "samples of the estimator", "score_items": "scored items",
    "score_setting": "scoring",
}  # fmt: skip
"""Columns that define a score, and the plural of each."""
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
    """Return the runs of some studies as one frame. A run that more than one has counts once, in the first.

    Args:
        frames: of one study each, from ``analysis.load.study``.

    Raises:
        ValueError: two of them cannot be compared; the message has the reason.
    """
    for index, frame in enumerate(frames):
        for previous in frames[:index]:
            _check(previous, frame)
    joined = pd.concat(frames, ignore_index=True)
    again = joined.duplicated(["cell", "digest", "seed"])
    differ = _differences(frames)
    if again.any():
        verb = "is in several of the studies and counts" if again.sum() == 1 else "are in several and count"
        differ.append(f"{plural(again.sum(), 'run')} {verb} once")
    return joined[~again].reset_index(drop=True).assign(studies_differ=json.dumps(differ))


def _check(frame_a: pd.DataFrame, frame_b: pd.DataFrame) -> None:
    """Raise ValueError where two studies share a task at one scale, but neither data nor score."""
    names = [str(frame["study"].iloc[0]) for frame in (frame_a, frame_b)]
    by_key = [
        frame[frame["status"] == "complete"].groupby([*TASK_SCALE, "likelihood"], dropna=False)
        for frame in (frame_a, frame_b)
    ]
    for key in [key for key in by_key[0].groups if key in by_key[1].groups]:
        for column, label in {"fingerprint": "data (fingerprints)", **SCORING}.items():
            values = [_values(groups.get_group(key), column) for groups in by_key]
            if all(values) and values[0] != values[1]:
                both = " and ".join(f"{name} {', '.join(v)}" for name, v in zip(names, values, strict=True))
                where = ", ".join(str(part) for part in key if isinstance(part, str))
                raise ValueError(
                    f"study={','.join(names)} cannot be compared on {where}: other {label}, {both}; compare "
                    "each alone, or train one again"
                )


def _values(runs: pd.DataFrame, column: str) -> list[str]:
    """Return the values of a column as text, in order."""
    values = runs[column].dropna().unique() if column in runs else []
    return sorted(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _differences(frames: list[pd.DataFrame]) -> list[str]:
    """Return the settings and conditions that the studies do not have in common, as sentences.

    Settings are compared between studies that share a task at one scale.
    """
    by_study = {str(frame["study"].iloc[0]): frame for frame in frames}
    settings: dict[str, dict[str, list[str]]] = {}
    studies_of_task = pd.concat(frames).groupby(TASK_SCALE)["study"].unique()
    sharing = {study for studies in studies_of_task if len(studies) > 1 for study in studies}
    for study in sorted(sharing):
        frame = by_study[study]
        for path in frame["path"]:
            for setting, value in readable_config([path], SHARED).items():
                texts = settings.setdefault(setting, {}).setdefault(study, [])
                if (text := str(setting_text(value))) not in texts:
                    texts.append(text)
    sentences = [
        f"{setting} is {_listed(values)}"
        for setting, values in sorted(settings.items())
        if len({tuple(sorted(v)) for v in values.values()}) > 1
    ]
    for column, label in CONDITIONS.items():
        values = {study: _values(frame, column) for study, frame in by_study.items()}
        if len({tuple(v) for v in values.values() if v}) > 1:
            long = any(len(text) > 24 for v in values.values() for text in v)
            sentences.append(f"{label} differ" if long else f"{label} is {_listed(values)}")
    if packages := mixed_packages(pd.concat(frames)):
        sentences.append(f"package versions differ ({', '.join(packages)})")
    return sentences


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
        f"{package} {' and '.join(sorted(used))}"
        for package, used in sorted(versions.items())
        if len(used) > 1
    ]


def _listed(values: dict[str, list[str]]) -> str:
    """Return ``1 in a, 2 in b``."""
    parts = []
    for study, texts in values.items():
        more = f" and {len(texts) - MOST_VALUES} more" * (len(texts) > MOST_VALUES)
        parts.append(f"{' or '.join(sorted(texts)[:MOST_VALUES])}{more} in {study}")
    return ", ".join(parts)
