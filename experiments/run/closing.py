"""The last lines of a run: its scores with their uncertainties, its cost, and the next command."""

from __future__ import annotations

import statistics
from pathlib import Path

from experiments.config.studies import study_command
from experiments.runtime.console import clock, count, plural, plus_minus, standard_error_over
from experiments.runtime.errors import RunError
from experiments.runtime.run_status import RunStatus
from experiments.tasks.metrics import Metric
from experiments.tracking.run_files import Provenance, RunResult, TrainingSummary
from experiments.tracking.run_folder import RunFolder


def closing_lines(folder: Path, result: RunResult) -> list[str]:
    """Return what a finished run prints at its end, and again whenever it is issued again.

    Args:
        folder: of the run; the other seeds of its cell stand beside it.
        result: of the run.
    """
    if result.status != RunStatus.COMPLETE:
        return [f"{result.status}: {result.message or 'no reason recorded'}"]
    scores = result.test_metrics
    lines = [f"{'' if place else 'score: '}{_score(metric)}" for place, metric in enumerate(scores)]
    if scores and (seeds := _over_seeds(folder, scores[0])):
        lines.append(seeds)
    lines += [f"extra evaluation {_score(metric)}" for metric in result.metrics if metric not in scores]
    if result.training is not None:
        lines.append(_cost(result.training))
    return [*lines, f"next: {study_command('compare', folder.parents[1])}"]


def _score(metric: Metric) -> str:
    """Return a metric with the standard error over the items that were scored."""
    over = standard_error_over(metric.clusters or metric.items, metric.clustered_by)
    return f"{metric.split} {metric.name} {metric.value:.4f}{plus_minus(metric.standard_error)} ({over})"


def _over_seeds(folder: Path, metric: Metric) -> str | None:
    """Return mean and standard deviation over the finished seeds of the cell; None below two.

    It says so where they were not all trained with the same code.
    """
    values, code = [], set[str]()
    for path in folder.parent.glob("s*/result.json"):
        try:
            run = RunFolder(path.parent)
            result, provenance = run.result(), run.provenance()
        except RunError:
            continue  # another run's: its own row says that it is damaged
        if result is None or result.status != RunStatus.COMPLETE:
            continue
        if result.test_metrics and result.test_metrics[0].name == metric.name:
            values.append(result.test_metrics[0].value)
            code |= _code(provenance)
    if len(values) < 2:
        return None
    other = " trained with different code" if len(code) > 1 else ""
    return (
        f"over {len(values)} seeds{other}: mean {statistics.mean(values):.4f}, standard deviation "
        f"{statistics.stdev(values):.4f}"
    )


def _code(provenance: Provenance | None) -> set[str]:
    """Return the hashes of the code that the sessions of a run had, as far as they are recorded."""
    if provenance is None:
        return set()
    earlier = provenance.resume.changed.get("code", [])
    return {str(code) for code in (*earlier, provenance.git.code) if code}


def _cost(training: TrainingSummary) -> str:
    """Return what training cost."""
    return (
        f"cost: {count(training.flops)} FLOPs, {clock(training.seconds)} of training steps, "
        f"{count(training.tokens)} tokens in {plural(training.steps, 'step')}"
    )
