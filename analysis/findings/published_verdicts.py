"""Verdicts on published results, computed from our runs.

A value with a tolerance is reproduced if our mean over seeds is within it, else missed by the distance to the
value (or to the nearer end of a range). An order holds if each gain, paired by seed, is positive with a 95%
t-interval above 0 over at least three seeds; no correction for their number is needed, because all gains must
be positive. It is not separated if all means agree with it but an interval does not, and does not hold if a
mean disagrees. A record without a frame was not run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pandas as pd

from archbench.analysis.declared.frames import Frames
from archbench.analysis.declared.records import NOT_RUN
from archbench.analysis.declared.selection import select
from archbench.analysis.findings.published import Order, Record, Row
from archbench.analysis.findings.published_page import Line, OrderVerdict, Page
from archbench.analysis.stats.arms import finished
from archbench.analysis.stats.intervals import mean_interval
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.experiments.runtime.errors import DataError, nearest

COLUMNS = {
    "status", "score", "seed", "finished_at", "git_commit", "git_dirty", "device_processor", "device_threads",
}  # fmt: skip
"""Required columns of a frame."""

Values = dict[int, float]
"""Our result by seed."""


def frame_of(record: Record, frames: Frames) -> pd.DataFrame | None:
    """Return the runs of a record; None if they were not run. Raises DataError if they cannot be read."""
    if not record.frame:
        return None
    if frames.stored is not None:
        return frames.file(record.frame, COLUMNS)
    runs = frames.study(record.where.get("study", record.frame))
    return None if runs.empty else runs


def row_values(row: Row, record: Record, frame: pd.DataFrame | None) -> Values:
    """Return our result for a row, by seed; empty if it was not run. Raises DataError."""
    if frame is None or not row.where:
        return {}
    scores = _scores(frame, {**record.where, **row.where}, row.test)
    if row.over:
        base_scores = _scores(frame, {**record.where, **row.over}, row.test)
        scores = {seed: score / base_scores[seed] for seed, score in scores.items() if seed in base_scores}
    return {seed: (score - record.offset) * record.factor for seed, score in scores.items()}


def _scores(frame: pd.DataFrame, selection: Mapping[str, str], test: str) -> Values:
    """Return the score of the runs that a row selects, by seed. Diverged and unfinished runs have none."""
    chosen = select(frame, selection, must_exist=True)
    chosen = chosen[finished(chosen)]
    if chosen["seed"].duplicated().any():
        raise DataError(f"where: {dict(selection)} picks multiple runs of one seed; name the arm too")
    scores: Values = {}
    for run in chosen.itertuples():
        tests = json.loads(str(run.further)) if test else {"": run.score}
        if test not in tests:
            raise DataError(f"test: the runs were not tested with '{test}'{nearest(test, tests)}")
        scores[int(run.seed)] = float(tests[test])
    return scores


def row_verdict(row: Row, values: Values, direction: str, digits: int) -> str:
    """Return the verdict on a row; empty if only an order is claimed."""
    if not values:
        return NOT_RUN
    if row.tolerance is None or row.published is None:
        return ""
    mean = mean_interval(list(values.values())).mean
    high = row.published if row.up_to is None else row.up_to
    missed = min(mean - row.published, 0.0) + max(mean - high, 0.0)
    if abs(missed) <= row.tolerance:
        return f"reproduced within {row.tolerance:g}"
    better = {"higher": missed > 0, "lower": missed < 0}.get(direction)
    return f"missed by {missed:+.{digits}f}" + (
        "" if better is None else " (better)" if better else " (worse)"
    )


def order_verdict(order: Order, values: Mapping[str, Values], direction: str, digits: int) -> OrderVerdict:
    """Return the verdict on a claimed order, which is determined by its weakest pair."""
    sign = 1.0 if direction == "higher" else -1.0
    gains = []
    for better in order.better:
        for worse in order.worse:
            a, b = values[better], values[worse]
            gain = mean_interval([sign * (a[seed] - b[seed]) for seed in sorted(a) if seed in b])
            if not gain.n:
                return OrderVerdict(NOT_RUN)
            bottom = -math.inf if gain.half_width is None else gain.mean - gain.half_width
            sure = gain.n >= MIN_SEEDS and bottom > 0
            text = f"{gain.mean:+.{digits}f}"
            text += "" if gain.half_width is None else f" ± {gain.half_width:.{digits}f}"
            gains.append((gain.mean > 0, sure, bottom, f"{better} over {worse}", text))
    agrees, sure, _, pair, gain_text = min(gains)
    verdict = "does not hold" if not agrees else "holds" if sure else "not separated"
    return OrderVerdict(verdict, pair, gain_text)


def page_of(name: str, record: Record, frames: Frames) -> Page:
    """Return a record with our results and all verdicts. Raises DataError if its runs cannot be chosen."""
    frame = frame_of(record, frames)
    values = {row.name: row_values(row, record, frame) for row in record.rows}
    lines = [
        Line(row=row, ours=mean_interval(list(values[row.name].values())),
             verdict=row_verdict(row, values[row.name], record.direction, record.digits))
        for row in record.rows
    ]  # fmt: skip
    orders = [(o.claim, order_verdict(o, values, record.direction, record.digits)) for o in record.orders]
    return Page(name=name, record=record, lines=lines, orders=orders, when=_when(record, frame))


def _when(record: Record, frame: pd.DataFrame | None) -> str:
    """Return date, machine, commit and seeds of our runs."""
    if frame is None:
        return NOT_RUN
    runs = select(frame, record.where)
    days = sorted({str(at)[:10] for at in runs["finished_at"].dropna()})
    commits = sorted({str(c)[:7] for c in runs["git_commit"].dropna()})
    changed = " with changes" if (runs["git_dirty"].astype(str) == "True").any() else ""
    parts = [
        " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
        ", ".join(sorted({f"{r.device_processor}, {r.device_threads} threads" for r in runs.itertuples()})),
        f"commit {', '.join(commits)}{changed}",
        f"seeds {', '.join(map(str, sorted(runs['seed'].unique())))}",
    ]
    return "; ".join(part for part in parts if part)
