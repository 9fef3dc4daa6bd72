"""Compute to target, gains over the baseline, and ranks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups
from archbench.analysis.stats.arms import declared_baseline, finished, likelihood_group, ranked
from archbench.analysis.stats.pairs import verdict_of
from archbench.analysis.stats.targets.steps_to_loss import first_reached, validation_curve
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.analysis.stats.verdicts.verdict import BETTER, WORSE

LEVELS = 8


def baseline_of(rows: pd.DataFrame, frame: pd.DataFrame) -> str:
    """Return ``study.baseline`` if it is in these rows of ``arm_table``, else the best ranked row.

    If no row is ranked, return the first row.
    """
    columns = [column for column in ("arm", "backbone", "baseline") if column in frame]
    declared = declared_baseline(frame.loc[frame["arm"].isin(rows["arm"]), columns])
    default = pd.concat([rows[ranked(rows)], rows])["arm"].iloc[0]
    return str(default) if declared is None else declared


def levels_reached(frame: pd.DataFrame, history: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return how many times fewer FLOPs and seconds than the baseline each arm needs to reach a level.

    The eight levels are evenly spaced from the baseline's first validation score to its last, averaged over
    seeds. Columns: ``task scale arm baseline metric level fewer_flops fewer_seconds``; means over the common
    seeds, without a row if one of them does not reach the level. Arms are compared within a likelihood type;
    arms with an unfinished run are left out.

    Args:
        frame: runs.
        history: their curves.
        table: their ``arm_table``.
    """
    curves = dict(list(history[history["kind"] == "validation"].groupby("path")))
    rows: list[dict[str, object]] = []
    arms = table.query("kind == 'arm' and seeds > 0 and seeds == runs")
    for (task, scale, _), group in scale_groups(arms, [*TASK_SCALE, "likelihood"], dropna=False):
        baseline, example = baseline_of(group, frame), group.iloc[0]
        metric, direction = str(example["metric"]), str(example["direction"])
        table_runs = frame[finished(frame) & (frame["task"] == task) & (frame["scale"] == scale)]
        points = {
            (run["arm"], run["seed"]): validation_curve(curves[run["path"]], metric)
            for run in table_runs[table_runs["arm"].isin(group["arm"])].to_dict("records")
            if run["path"] in curves
        }
        points = {key: curve for key, curve in points.items() if len(curve) > 1}
        ends = [
            (c["value"].iloc[0], c["value"].iloc[-1]) for (model, _), c in points.items() if model == baseline
        ]
        if not ends or len(group) < 2:
            continue
        start, end = np.mean(ends, axis=0)
        for level in np.linspace(float(start), float(end), LEVELS + 1)[1:]:
            at = {key: first_reached(curve, float(level), direction) for key, curve in points.items()}
            for model in group["arm"]:
                seeds = [seed for name, seed in points if name == model and (baseline, seed) in points]
                reached = [(at[baseline, seed], at[model, seed]) for seed in seeds]
                if not reached or not all(
                    baseline_point and model_point and model_point["flops"] > 0
                    for baseline_point, model_point in reached
                ):
                    continue
                fewer = {
                    f"fewer_{axis}": float(
                        np.mean(
                            [
                                baseline_point[axis] / model_point[axis]
                                for baseline_point, model_point in reached
                            ]
                        )
                    )
                    for axis in ("flops", "seconds")
                }
                rows.append(
                    {"task": task, "scale": scale, "arm": model, "baseline": baseline, "metric": metric}
                    | {"level": float(level), **fewer}
                )
    columns = ["task", "scale", "arm", "baseline", "metric", "level", "fewer_flops", "fewer_seconds"]
    return pd.DataFrame(rows, columns=columns)


def baseline_gains(frame: pd.DataFrame, table: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the gain of each arm over the baseline of its likelihood type on each task.

    Columns: ``task scale arm gain low high verdict``; the interval is that of ``pair_verdicts``.

    Args:
        frame: runs.
        table: their ``arm_table``.
        pairs: their ``pair_verdicts``.
    """
    rows = []
    arms = table.query("kind == 'arm' and seeds > 0 and seeds == runs")
    for (task, scale, _), group in scale_groups(arms, [*TASK_SCALE, "likelihood"], dropna=False):
        baseline = baseline_of(group, frame)
        table_pairs = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        for model in group["arm"]:
            pair = None if model == baseline else verdict_of(table_pairs, model, baseline)
            if pair is not None and not pd.isna(pair["low"]):
                rows.append(
                    {"task": task, "scale": scale, "arm": model, "gain": pair["difference"]}
                    | {key: pair[key] for key in ("low", "high", "verdict")}
                )
    return pd.DataFrame(rows, columns=["task", "scale", "arm", "gain", "low", "high", "verdict"])


def ranks(rows: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, str]:
    """Return the range of ranks within its likelihood type that each arm may have.

    An arm's best rank is one after all arms that are better, its worst rank one before all that are worse.
    Better is transitive: if two verdicts are true, so is the one that they imply. Arms that have not learned
    the task, or have an unfinished run, have no rank. No arm of a type has one if not all pairs of its models
    were tested: tests against a baseline do not order the others.
    """
    rank_ranges = {}
    arms = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
    for _, group in arms.groupby([likelihood_group(row) for _, row in arms.iterrows()]):
        learned = group[ranked(group)]
        names = [str(name) for name in learned.loc[learned["seeds"] == learned["runs"], "arm"]]
        if not _all_tested(names, pairs) or len(names) < 2 <= len(learned):
            continue
        above = _better(names, pairs)
        for name in names:
            worse = sum(name in better for better in above.values())
            best_rank, worst_rank = 1 + len(above[name]), len(names) - worse
            rank_ranges[name] = f"{best_rank}" if best_rank == worst_rank else f"{best_rank}-{worst_rank}"
    return rank_ranges


def _all_tested(names: list[str], pairs: pd.DataFrame) -> bool:
    """Return True if each two of the models were compared over enough seeds for a verdict."""
    tested = pairs[pairs["seeds"] >= MIN_SEEDS]
    found = {frozenset(pair) for pair in zip(tested["model"], tested["other"], strict=True)}
    return all(frozenset(pair) in found for pair in combinations(names, 2))


def _better(names: list[str], pairs: pd.DataFrame) -> dict[str, set[str]]:
    """Return for each arm the arms that are better, directly or by transitivity."""
    through: dict[str, set[str]] = {name: set() for name in {*names, *pairs["model"], *pairs["other"]}}
    for model, opponent, verdict in zip(pairs["model"], pairs["other"], pairs["verdict"], strict=True):
        if verdict == BETTER:
            through[opponent].add(model)
        elif verdict == WORSE:
            through[model].add(opponent)
    for middle in through:
        for better in through.values():
            if middle in better:
                better |= through[middle]
    return {name: through[name] & set(names) for name in names}
