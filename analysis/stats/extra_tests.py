"""Extra evaluations of the arms of a study: the same models on the task with different settings.

``trainer.extra_evaluations`` configures them, such as ``sequence_length=256``. The score on the task as
trained comes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pandas as pd

from archbench.analysis.load.scale_order import scale_groups
from archbench.analysis.stats.arms import finished
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.intervals import mean_interval

TRAINED = "as trained"
"""Column of the evaluation on the task as trained."""


def further_scores(frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean score of each arm on each extra evaluation, in the order of ``arm_table``.

    Columns: ``task scale arm test score half_width seeds``; ``half_width`` (of the 95% t-interval over
    seeds) is NaN below two seeds. Empty if a study has no extra evaluations.

    Args:
        frame: runs.
        table: their ``arm_table``.
    """
    rows: list[dict[str, object]] = []
    columns = ["task", "scale", "arm", "test", "score", "half_width", "seeds"]
    if "further" not in frame or not frame["further"].map(_has_tests).any():
        return pd.DataFrame(rows, columns=columns).astype({"score": float, "half_width": float})
    good = frame.loc[finished(frame), ["cell", "digest", "score", "further"]]
    runs_of_arm = dict(list(good.groupby(["cell", "digest"])))
    order = table.query("kind == 'arm'")
    for (task, scale), arms in scale_groups(order):
        for _, row in arms.iterrows():
            runs = runs_of_arm.get((row["cell"], row["digest"]), good.iloc[:0])
            run_scores = [{TRAINED: run.score} | json.loads(run.further) for run in runs.itertuples()]
            for test in run_scores[0] if run_scores and len(run_scores[0]) > 1 else ():
                estimate = mean_interval([scores[test] for scores in run_scores])
                rows.append(
                    {
                        "task": task,
                        "scale": scale,
                        "arm": row["arm"],
                        "test": test,
                        "score": estimate.mean,
                        "half_width": estimate.half_width,
                        "seeds": estimate.n,
                    }
                )
    return pd.DataFrame(rows, columns=columns).astype({"score": float, "half_width": float})


def _has_tests(further: object) -> bool:
    return isinstance(further, str) and further not in ("", "{}")


def further_grid(scores: pd.DataFrame, title: str = "") -> Grid:
    """Return the scores as text: a row for each arm, a column for each extra evaluation."""
    tests, arms = scores["test"].unique(), scores["arm"].unique()
    shared = shared_setting(tests)
    head = [shared or "model", *(test.removeprefix(f"{shared}=") for test in tests)]
    texts = {
        (row.arm, row.test): f"{row.score:.3f}"
        + ("" if pd.isna(row.half_width) else f" ± {row.half_width:.3f}")
        for row in scores.itertuples()
    }
    rows = [[model, *(texts[model, test] for test in tests)] for model in arms]
    return Grid(title=title, head=head, rows=rows)


def shared_setting(tests: Iterable[str]) -> str:
    """Return the one setting in which all extra evaluations differ; empty if there is no such setting."""
    names = {tuple(settings(test)) for test in tests if test != TRAINED}
    return names.pop()[0] if len(names) == 1 and all(len(name) == 1 for name in names) else ""


def settings(test: str) -> dict[str, str]:
    """Return the settings that an extra evaluation changes, sorted by name."""
    pairs = [setting.partition("=") for setting in test.split()]
    return {name: value for name, _, value in sorted(pairs)}


def published(frame: pd.DataFrame) -> list[str]:
    """Return the published results on the same question that the study's YAML quotes."""
    return list(dict.fromkeys(line for text in frame["published"].dropna() for line in json.loads(text)))
