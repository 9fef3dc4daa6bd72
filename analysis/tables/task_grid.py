"""All models on all tasks of a study in one table: a row for each task, a column for each model.

A cell holds the mean test score over seeds, and how many seeds solved the task: reached ``study.solved``,
by default 0.95. A further column has the best reference line (a guess, a majority, a shallow baseline); a
mean that does not exceed it is in brackets.
"""

from __future__ import annotations

import pandas as pd

from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups
from archbench.analysis.stats.arms import arm_table, finished, mixed_data
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.solve_rates import SOLVED, solve_rates
from archbench.analysis.stats.targets.performance_profile import lines
from archbench.analysis.tables import markdown
from archbench.analysis.tables.markdown import escaped


def task_grid(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each scale, task and arm: mean ``score``, the columns of ``solve_rates``, ``shallow``.

    ``shallow`` names the best reference line, with its ``shallow_score``. A run that diverged counts as a
    score of 0. Tasks that are not scored by an accuracy, and tasks with runs on different data, are left out.
    """
    groups = [group for _, group in scale_groups(frame) if not mixed_data(group)]
    if not groups:
        return pd.DataFrame()
    runs = pd.concat(groups)
    runs = runs.assign(arm=lines(runs), solved=runs["solved"].fillna(SOLVED))
    arms = arm_table(runs)
    rates = solve_rates(runs, arms)
    if rates.empty:
        return pd.DataFrame()
    ended = runs[finished(runs) | (runs["status"] == "diverged")]
    means = ended.assign(score=ended["score"].where(finished(ended), 0.0))
    scores = means.groupby([*TASK_SCALE, "arm"])["score"].mean().reset_index()
    table = rates.merge(scores, on=[*TASK_SCALE, "arm"], how="left")
    references = arms.query("kind == 'reference'").sort_values("score", kind="stable")
    best_reference = references.groupby(TASK_SCALE).last()[["arm", "score"]].reset_index()
    best_reference = best_reference.rename(columns={"arm": "shallow", "score": "shallow_score"})
    return table.merge(best_reference, on=TASK_SCALE, how="left")


def grid_text(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of text of one scale; the last row counts the tasks that every seed solved."""
    solved = table.assign(whole=table["solved"] == table["runs"]).groupby("arm")["whole"].agg(["sum", "size"])
    arms = solved.sort_values("sum", ascending=False, kind="stable").index.tolist()
    body = []
    for task, task_rows in table.groupby("task", sort=True):
        shallow, shallow_score = task_rows.iloc[0][["shallow", "shallow_score"]]
        cells = {}
        for row in task_rows.itertuples():
            beaten = pd.isna(shallow_score) or row.score > shallow_score
            score = f"{row.score:.3f}" if beaten else f"({row.score:.3f})"
            cells[row.arm] = f"{score} {row.solved}/{row.runs}"
        shallow = "-" if pd.isna(shallow) else f"{shallow_score:.3f} {shallow}"
        body.append([str(task), shallow, *(cells.get(model, "-") for model in arms)])
    counts = [f"{solved.loc[model, 'sum']} of {solved.loc[model, 'size']}" for model in arms]
    return ["task", "best reference", *arms], [*body, ["solved by every seed", "", *counts]]


def grid_markdown(table: pd.DataFrame, warnings: list[str]) -> str:
    """Return the warnings, then the tables of all scales, as Markdown."""
    text = [*(f"- Warning: {escaped(warning)}." for warning in warnings), *[""] * bool(warnings)]
    for (scale,), rows in scale_groups(table, ["scale"]):
        head, body = grid_text(rows)
        text += [f"## {escaped(str(scale))}", "", *markdown.table(head, body), ""]
    return "\n".join([*text, note(table), ""])


def note(table: pd.DataFrame) -> str:
    """Return the note that explains the cells."""
    levels = " or ".join(f"{level:g}" for level in sorted(table["threshold"].unique()))
    return (
        f"Mean score on the test split, then how many of the seeds reached {levels}. In brackets: not above "
        "the best reference line."
    )


def terminal_grids(table: pd.DataFrame) -> list[Grid]:
    """Return the tables of all scales for the terminal: a row for each model, a column for each task."""
    grids = []
    for (scale,), rows in scale_groups(table, ["scale"]):
        head, body = grid_text(rows)
        columns = list(zip(*body, strict=True))
        names = [
            f"{task}: {reference}"
            for task, reference in zip(*columns[:2], strict=True)
            if reference not in ("", "-")
        ]
        models = [[model, *cells] for model, cells in zip(head[2:], columns[2:], strict=True)]
        text = " ".join([note(rows), *[f"Best reference of {'; '.join(names)}."] * bool(names)])
        grids.append(Grid(title=f"All tasks, {scale}", head=["model", *columns[0]], rows=models, note=text))
    return grids
