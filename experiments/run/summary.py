"""Summaries of a run and a study, printed at their end: scores with uncertainties, cost, the next command."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from archbench.experiments.config.study import study_command
from archbench.experiments.runtime.console import clock, count, plural, plus_minus, standard_error_over
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.tasks.metrics import Metric
from archbench.experiments.tracking.run_files import RunResult
from archbench.experiments.tracking.run_folder import NO_RUN, RunFolder, StudyFolders


def closing_lines(folder: Path, result: RunResult) -> list[str]:
    """Return what a run prints at its end, and whenever the same command is given again.

    Args:
        folder: of the run; the other seeds of its cell are next to it.
        result: of the run.
    """
    if result.status != RunStatus.COMPLETE:
        return [f"{result.status}: {result.message or 'no reason recorded'}"]
    scores = result.test_metrics
    lines = [f"{'' if index else 'score: '}{_score(metric)}" for index, metric in enumerate(scores)]
    if scores and (seeds := _over_seeds(folder, scores[0])):
        lines.append(seeds)
    lines += [f"extra evaluation {_score(metric)}" for metric in result.metrics if metric not in scores]
    if (training := result.training) is not None:
        lines.append(
            f"cost: {count(training.flops)} FLOPs, {clock(training.seconds)} of training steps, "
            f"{count(training.tokens)} tokens in {plural(training.steps, 'step')}"
        )
    return [*lines, f"next: {study_command('compare', folder.parents[1])}"]


def _score(metric: Metric) -> str:
    """Return a metric with the standard error over the items that were scored."""
    over = standard_error_over(metric.clusters or metric.items, metric.clustered_by)
    return f"{metric.split} {metric.name} {metric.value:.4f}{plus_minus(metric.standard_error)} ({over})"


def _over_seeds(folder: Path, metric: Metric) -> str | None:
    """Return mean and standard deviation over the complete seeds of the cell; None below two.

    The line states if they were not all trained with the same code.
    """
    values, code = [], set[str]()
    for path in folder.parent.glob("s*/result.json"):
        try:
            run = RunFolder(path.parent)
            result, provenance = run.result(), run.provenance()
        except RunError:
            continue  # a damaged folder has a row of its own
        if result is None or result.status != RunStatus.COMPLETE:
            continue
        if result.test_metrics and result.test_metrics[0].name == metric.name:
            values.append(result.test_metrics[0].value)
            if provenance is not None:  # hashes of the code of all sessions of the run
                hashes = [*provenance.resume.changed.get("code", []), provenance.git.code]
                code |= {str(code_hash) for code_hash in hashes if code_hash}
    if len(values) < 2:
        return None
    other = " trained with different code" if len(code) > 1 else ""
    return (
        f"over {len(values)} seeds{other}: mean {statistics.mean(values):.4f}, standard deviation "
        f"{statistics.stdev(values):.4f}"
    )


MOST_SCORES = 12
"""Run configurations of a table of scores."""
SHOWN = 5
"""Runs that are named with one reason."""


def summary(study: Path) -> list[str]:
    """Return the lines printed after a sweep: counts by status, reasons, scores, the next command.

    Each sweep prints the reason of a rejected run, which is therefore left out here.
    """
    counts: Counter[str] = Counter()
    reasons: dict[str, list[str]] = defaultdict(list)
    results: list[RunResult] = []
    folders = StudyFolders.of(study)
    for name in folders.runs:
        folder = study / name
        status, message, result = _outcome(folder)
        counts[status] += 1
        if result is not None and status == RunStatus.COMPLETE:
            results.append(result)
        if status != RunStatus.COMPLETE:
            first = "" if status == RunStatus.REFUSED else message.strip().partition("\n")[0]
            reasons[f"{status}: {first}" if first else status].append(f"{folder.parent.name} {folder.name}")
    order = {str(status): index for index, status in enumerate(RunStatus)}
    ordered = sorted(counts.items(), key=lambda item: order.get(item[0], len(order)))
    lines = [f"study {study.name}: " + ", ".join(f"{count} {status}" for status, count in ordered)]
    for reason, runs in reasons.items():
        more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
        lines.append(f"  {', '.join(runs[:SHOWN])}{more}: {reason}")
    lines += [f"  {study / name}: {NO_RUN}" for name in folders.others]
    lines += score_lines(results)
    lines.append(f"to compare: {study_command('compare', study)}")
    return lines


def _outcome(folder: Path) -> tuple[str, str, RunResult | None]:
    """Return status, message and result of a run."""
    try:
        result = RunFolder(folder).result()
    except RunError as error:
        return RunStatus.UNREADABLE, str(error), None
    if result is None:
        return RunStatus.INCOMPLETE, "no result; it still runs, or was killed", None
    return result.status, result.message or "", result


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The test scores of a run configuration."""

    name: str
    values: list[float]
    """Of each seed."""
    tokens_per_second: float
    """Of its training, mean over seeds."""

    def __str__(self) -> str:
        spread = f" ± {statistics.stdev(self.values):.4f}" if len(self.values) > 1 else ""
        return f"{statistics.mean(self.values):.4f}{spread}"


def score_lines(results: list[RunResult]) -> list[str]:
    """Return a table of mean test scores for each task, metric and likelihood type, each with a sentence.

    Tables have lines of at most 80 characters. A table with one run configuration is left out.
    """
    tables: dict[tuple[str, str, str, str | None], dict[str, list[RunResult]]] = {}
    for result in results:
        for metric in result.test_metrics[:1]:
            kind = (f"{result.task}, {result.scale}", metric.name, metric.direction, metric.likelihood)
            tables.setdefault(kind, {}).setdefault(f"{result.cell}-{result.digest}", []).append(result)
    lines = []
    for (task, name, direction, likelihood), runs_of in sorted(tables.items(), key=str):
        if len(runs_of) < 2:
            continue
        backbones = Counter(runs[0].backbone for runs in runs_of.values())
        scores = [_scores(runs, unique=backbones[runs[0].backbone] == 1) for runs in runs_of.values()]
        scores.sort(key=lambda score: statistics.mean(score.values), reverse=direction == "higher")
        of_type = f", {likelihood}" if likelihood else ""
        lines += [f"{task}: test {name}{of_type}, {direction} is better", *_score_table(scores)]
        lines.append(f"  {scores[0].name} has the best mean, {scores[0]}; compare tests the differences.")
    return lines


def _scores(runs: list[RunResult], *, unique: bool) -> Scores:
    """Return the scores of the seeds of a run configuration, with its digest if its name is not unique."""
    speeds = [run.training.tokens_per_second for run in runs if run.training is not None]
    return Scores(
        name=runs[0].backbone if unique else f"{runs[0].backbone} {runs[0].digest}",
        values=[run.test_metrics[0].value for run in runs],
        tokens_per_second=statistics.mean([speed for speed in speeds if speed is not None] or [math.nan]),
    )


def _score_table(scores: list[Scores]) -> list[str]:
    lines = [f"  {'model':40} {'score ± deviation':>20} {'seeds':>5} {'tok/s':>7}"]
    lines += [
        f"  {score.name[:40]:40} {score!s:>20} {len(score.values):5} {count(score.tokens_per_second):>7}"
        for score in scores[:MOST_SCORES]
    ]
    return [*lines, *[f"  {len(scores) - MOST_SCORES} more"] * (len(scores) > MOST_SCORES)]
