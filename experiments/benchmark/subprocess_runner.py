"""A row of a benchmark: one cell measured in a fresh process, or a search in one process per trial."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Any

from archbench.experiments.benchmark.grid import Benchmark
from archbench.experiments.benchmark.memory_limit import FINENESS, largest
from archbench.experiments.benchmark.workloads import CellConfig
from archbench.experiments.runtime.child_processes import run_python
from archbench.experiments.runtime.errors import RunError

Row = dict[str, Any]

KILLED = -9
"""Exit code of a process that the system killed, which it does when memory runs out."""
MEMORY = (
    "OutOfMemoryError", "MemoryError", "can't allocate memory", "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
)  # fmt: skip
"""Parts of the last message of a process that ran out of memory."""


def measure(benchmark: Benchmark, cell: CellConfig) -> Row:
    """Return the row of a cell, with a memory limit that of the largest batch that fits."""
    return one(benchmark, cell) if cell.memory_limit is None else search(benchmark, cell)


def one(benchmark: Benchmark, cell: CellConfig) -> Row:
    """Measure one cell in a fresh process."""
    order = json.dumps(benchmark.order(cell))
    ended = run_python(["-m", "archbench.experiments.benchmark.worker"], standard_input=order, capture=True)
    if ended.returncode == 0:
        measured = json.loads(ended.stdout.splitlines()[-1])
        return {**known(benchmark, cell), "status": "complete", "message": None, **measured}
    return {**known(benchmark, cell), **failure(ended.returncode, ended.stderr)}


def search(benchmark: Benchmark, cell: CellConfig) -> Row:
    """Measure the largest batch that fits; if none fits, return a row without a measurement."""
    trial = dataclasses.replace(cell, trial=True, repeats=1, seconds=0.0, warmup_seconds=0.0)

    def fits(batch_size: int) -> bool:
        trial_row = one(benchmark, dataclasses.replace(trial, batch_size=batch_size))
        if trial_row["status"] == "failed":
            raise RunError(f"with {batch_size} sequences: {trial_row['message']}")
        return trial_row["status"] == "complete"

    try:
        batch_size, too_large = largest(fits)
    except RunError as error:
        return {**known(benchmark, cell), "status": "failed", "message": str(error)}
    while batch_size:
        row = one(benchmark, dataclasses.replace(cell, batch_size=batch_size))
        if row["status"] != "oom":
            return {**row, "batch_too_large": too_large}
        # More repetitions may need slightly more memory than the trial.
        batch_size, too_large = batch_size * (FINENESS - 1) // FINENESS, batch_size
    message = f"not even one sequence fits into {cell.memory_limit} bytes"
    return {**known(benchmark, cell), "status": "oom", "message": message, "batch_too_large": 1}


def known(benchmark: Benchmark, cell: CellConfig) -> Row:
    """Return the columns that do not depend on the measurement."""
    request = benchmark.request
    has_batch = cell.memory_limit is None
    return {
        "backbone": request.name,
        "class": benchmark.cls.__name__,
        "mode": cell.mode,
        "context": cell.context,
        "source_length": cell.source_length,
        "batch_size": cell.batch_size,
        "batch_choice": "given" if has_batch else "largest",
        "memory_limit_bytes": cell.memory_limit,
        "batch_too_large": None,
        "tokens_per_step": request.tokens_per_step if has_batch and cell.mode == "train" else None,
        "steps": cell.steps,
        "filling": filling(benchmark) if cell.mode == "sample" else None,
        "precision": benchmark.device.precision,
        "vocab_size": cell.vocab_size,
        "piece": cell.piece,
        "config": json.dumps(dataclasses.asdict(benchmark.config)),
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def filling(benchmark: Benchmark) -> str:
    """Return the settings of unmasking as JSON."""
    return json.dumps(dataclasses.asdict(benchmark.unmasking_objective.unmasking))


def failure(code: int, errors: str) -> dict[str, str]:
    """Return status and message of a cell with a failed process."""
    message = next((line for line in reversed(errors.splitlines()) if line.strip()), f"exit code {code}")
    if code == KILLED or any(sign in message for sign in MEMORY):
        return {"status": "oom", "message": "out of memory" if code == KILLED else message}
    return {"status": "failed", "message": message}
