"""The last lines of a run: its scores with their uncertainties, its cost, and the next command."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from experiments.config.studies import study_command
from experiments.runtime.console import clock, count, plural, plus_minus, standard_error_over
from experiments.runtime.errors import RunError
from experiments.runtime.run_status import RunStatus
from experiments.tracking.run_folder import RunFolder


def closing_lines(folder: Path, result: dict[str, Any]) -> list[str]:
    """Return what a finished run prints at its end, and again whenever it is issued again.

    Args:
        folder: of the run; the other seeds of its cell stand beside it.
        result: its record.
    """
    if result["status"] != RunStatus.COMPLETE:
        return [f"{result['status']}: {result.get('message') or 'no reason recorded'}"]
    metrics = result.get("metrics") or []
    own = [metric for metric in metrics if metric["split"] == "test"]
    extra = [metric for metric in metrics if metric["split"] != "test"]
    lines = [f"{'' if place else 'score: '}{_score(metric)}" for place, metric in enumerate(own)]
    if own and (seeds := _over_seeds(folder, own[0])):
        lines.append(seeds)
    lines += [f"extra evaluation {_score(metric)}" for metric in extra]
    lines.append(_cost(result))
    return [*lines, f"next: {study_command('compare', folder.parents[1])}"]


def _score(metric: dict[str, Any]) -> str:
    """Return a metric with the standard error over the items that were scored."""
    value, error = metric["value"], metric.get("standard_error")
    text = f"{metric['split']} {metric['name']} {_number(value)}"
    if error is None:
        return text
    clusters, kind = metric.get("clusters") or metric["items"], metric.get("clustered_by", "example")
    return f"{text}{plus_minus(error)} ({standard_error_over(clusters, kind)})"


def _over_seeds(folder: Path, metric: dict[str, Any]) -> str | None:
    """Return mean and standard deviation over the finished seeds of the cell; None below two.

    It says so where they were not all trained with the same code.
    """
    values, code = [], set[str]()
    for path in folder.parent.glob("s*/result.json"):
        try:
            run = RunFolder(path.parent)
            record, provenance = run.result() or {}, run.provenance()
        except RunError:
            continue  # another run's: its own row says that it is damaged
        first = next((m for m in record.get("metrics") or [] if m["split"] == "test"), None)
        if record.get("status") == RunStatus.COMPLETE and first and first["name"] == metric["name"]:
            values.append(float(first["value"]))
            code |= _code(provenance)
    if len(values) < 2:
        return None
    other = " trained with different code" if len(code) > 1 else ""
    return (
        f"over {len(values)} seeds{other}: mean {statistics.mean(values):.4f}, standard deviation "
        f"{statistics.stdev(values):.4f}"
    )


def _code(provenance: dict[str, Any]) -> set[str]:
    """Return the hashes of the code that the sessions of a run had, as far as they are recorded."""
    earlier = provenance.get("resume", {}).get("changed", {}).get("code", [])
    return {code for code in (*earlier, (provenance.get("git") or {}).get("code")) if code}


def _cost(result: dict[str, Any]) -> str:
    """Return what training cost."""
    training = result["training"]
    return (
        f"cost: {count(training['flops'])} FLOPs, {clock(training['seconds'])} of training steps, "
        f"{count(training['tokens'])} tokens in {plural(training['steps'], 'step')}"
    )


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else str(value)
