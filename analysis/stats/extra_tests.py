"""Extra evaluations of the arms of a study: the same models on the task with other settings.

A study asks for them with ``trainer.extra_evaluations``, such as ``sequence_length=256``;
the score on the task as it was trained on stands first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pandas as pd

from analysis.stats.arms import TASK_SCALE, arm_table, finished
from analysis.stats.intervals import mean_interval

TRAINED = "as trained"
"""Column of the test on the task as it was trained on."""


def further_scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean score of each arm on each extra evaluation, in the order of ``arm_table``.

    Columns: ``task scale arm test score half_width seeds``; ``half_width`` (of the 95% t-interval over
    seeds) is NaN below two seeds. Empty where a study has no further tests.
    """
    rows = []
    order = arm_table(frame).query("kind == 'arm'")
    for (task, scale), arms in order.groupby(TASK_SCALE, sort=True):
        for _, arm in arms.iterrows():
            same = (frame["cell"] == arm["cell"]) & (frame["digest"] == arm["digest"])
            runs = frame[finished(frame) & same]
            found = [{TRAINED: run.score} | json.loads(run.further) for run in runs.itertuples()]
            for test in found[0] if found and len(found[0]) > 1 else ():
                estimate = mean_interval([scores[test] for scores in found])
                rows.append(
                    {
                        "task": task,
                        "scale": scale,
                        "arm": arm["arm"],
                        "test": test,
                        "score": estimate.mean,
                        "half_width": estimate.half_width,
                        "seeds": estimate.n,
                    }
                )
    columns = ["task", "scale", "arm", "test", "score", "half_width", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"score": float, "half_width": float})


def further_grid(scores: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text of one task's further tests: an arm a row, a test a column."""
    tests, arms = scores["test"].unique(), scores["arm"].unique()
    shared = shared_setting(tests)
    head = [shared or "model", *(test.removeprefix(f"{shared}=") for test in tests)]
    cells = scores.set_index(["arm", "test"])
    return head, [[arm, *(_text(cells.loc[(arm, test)]) for test in tests)] for arm in arms]


def _text(row: pd.Series) -> str:
    return f"{row['score']:.3f}" + ("" if pd.isna(row["half_width"]) else f" ± {row['half_width']:.3f}")


def shared_setting(tests: Iterable[str]) -> str:
    """The setting in which all further tests differ; empty where they differ in several, or in others."""
    names = {tuple(settings(test)) for test in tests if test != TRAINED}
    return names.pop()[0] if len(names) == 1 and all(len(name) == 1 for name in names) else ""


def settings(test: str) -> dict[str, str]:
    """The settings that a further test changes, in order of their names."""
    pairs = [word.partition("=") for word in test.split()]
    return {name: value for name, _, value in sorted(pairs)}


def published(frame: pd.DataFrame) -> list[str]:
    """Return what others published on the same question, as the study's YAML quotes it."""
    return list(dict.fromkeys(line for text in frame["published"].dropna() for line in json.loads(text)))
