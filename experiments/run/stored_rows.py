"""Runs that count as done because a frame of results holds their rows.

A study names the frame with ``study.stored``, a Parquet file of the rows of ``analysis.load.study``, relative
to the root of the checkout. A run whose digest and seed it holds with a final status is not trained again, so
that a study goes on on another machine, and a model that is added to it is trained alone.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.config.folder import CONF
from experiments.runtime.run_status import FINAL

if TYPE_CHECKING:
    from experiments.run.settings import Settings


def stored_status(settings: Settings) -> str | None:
    """Return the status of a run in the frame of its study; None where there is none, or no final one.

    Raises DataError where the frame cannot be read, or contradicts itself.
    """
    name = settings.study.stored
    if name is None:
        return None
    return _statuses(stored_frame(name)).get((settings.cell, settings.digest, settings.seed))


def stored_frame(name: str) -> Path:
    """Return the path of a frame that ``study.stored`` names."""
    return CONF.parent / name


@functools.cache
def _statuses(path: Path) -> dict[tuple[str, str, int], str]:
    """Return the final statuses of a frame, by cell, digest and seed; none where there is no such file."""
    if not path.exists():
        return {}
    # Arrow takes half a second to import: only where there is such a file.
    from experiments.tracking.results_frame import NEEDED, read_results

    rows = read_results(path, only=NEEDED).to_pylist()
    return {
        (row["cell"], row["digest"], row["seed"]): row["status"] for row in rows if row["status"] in FINAL
    }
