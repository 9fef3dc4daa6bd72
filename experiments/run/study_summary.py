"""The end of a study: how many of its runs ended in which way, why, and the command that compares them."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from experiments.config.studies import study_command
from experiments.runtime.errors import RunError
from experiments.runtime.run_status import RunStatus
from experiments.tracking.run_folder import RunFolder
from experiments.tracking.study_folders import NO_RUN, StudyFolders

SHOWN = 5
"""Runs that are named with one reason."""


def summary(study: Path) -> list[str]:
    """Return the lines printed after a sweep: counts by status, reasons, the next command.

    Each sweep refuses a run anew and prints its reason, which is therefore left out here.
    """
    counts: Counter[str] = Counter()
    reasons: dict[str, list[str]] = defaultdict(list)
    folders = StudyFolders.of(study)
    for name in folders.runs:
        folder = study / name
        status, message = _outcome(folder)
        counts[status] += 1
        if status != RunStatus.COMPLETE:
            first = "" if status == RunStatus.REFUSED else message.strip().partition("\n")[0]
            reasons[f"{status}: {first}" if first else status].append(f"{folder.parent.name} {folder.name}")
    order = {str(status): place for place, status in enumerate(RunStatus)}
    found = sorted(counts.items(), key=lambda item: order.get(item[0], len(order)))
    lines = [f"study {study.name}: " + ", ".join(f"{count} {status}" for status, count in found)]
    for reason, runs in reasons.items():
        more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
        lines.append(f"  {', '.join(runs[:SHOWN])}{more}: {reason}")
    lines += [f"  {study / name}: {NO_RUN}" for name in folders.others]
    lines.append(f"to compare: {study_command('compare', study)}")
    return lines


def _outcome(folder: Path) -> tuple[str, str]:
    """Return status and message of a run."""
    try:
        result = RunFolder(folder).result()
    except RunError as error:
        return RunStatus.UNREADABLE, str(error)
    if result is None:
        return RunStatus.INCOMPLETE, "no result; it still runs, or was killed"
    return result.status, result.message or ""
