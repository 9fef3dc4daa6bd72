"""Simulate a training step of many processes: memory of one by part, and bytes exchanged by collective.

    archbench cost simulate processes=64 task=text scale=1_3b parallel=fsdp budget.batch_size=64
    archbench cost simulate processes=8,64 output=steps.json -m backbone=decoder,mamba2 parallel=fsdp

One process simulates rank 0 on a CPU, with PyTorch's fake process group and tensors without memory: it needs
no GPU, no network, and no data but the task's. Kernels for GPUs are replaced by PyTorch operations, which
save more for the backward pass of a state-space model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.box
import rich.console
import rich.table
from omegaconf import DictConfig

from experiments.config.hydra_app import start
from experiments.config.options import take_options
from experiments.config.sections import read_sections
from experiments.runtime.atomic_io import write_json

WIDTH = 120
"""Characters of a line where the output is no terminal."""

_processes: list[int] = []
_rows: list[dict[str, Any]] = []


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    """The counts of processes, and the file of the results."""

    processes: str = "8"
    """Counts of processes, separated by commas."""
    output: str = ""
    """JSON file of the results; empty for none."""

    def __post_init__(self) -> None:
        if not all(part.isdigit() and int(part) > 1 for part in self.processes.split(",")):
            raise ValueError(f"processes={self.processes}: give numbers of two or more, as in processes=8,64")


def main() -> None:
    """Simulate each run of the overrides, and print tables of all of them."""
    config = take_options(SimulateConfig, __doc__)
    _processes.extend(map(int, config.processes.split(",")))
    sys.argv.append("hydra/launcher=basic")  # one process: the rows are gathered here
    start(_collect)
    if not _rows:
        return
    console = rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    print("Memory of one process at the peak of a step, in MiB:")
    console.print(_table("memory", ["peak", *_rows[0]["memory"]], 2**20))
    print("Bytes that a process exchanges in a step, in MB:")
    console.print(_table("traffic", sorted({kind for row in _rows for kind in row["traffic"]}), 1e6))
    if all(None not in row["seconds"].values() for row in _rows):
        print("Milliseconds of a step, at best, of computing and of exchanging by the device's links:")
        console.print(_table("seconds", ["computing", "exchanging"], 1e-3))
    if config.output:
        write_json(Path(config.output), _rows)


def _collect(cfg: DictConfig) -> None:
    """Add a row for each number of processes. Builds no weights."""
    sections = read_sections(cfg)
    from experiments.run.plan import plan
    from experiments.run.settings import read_settings
    from experiments.simulate.step import simulate

    settings = read_settings(sections, untuned=True)
    run_plan = plan(settings)
    for count in _processes:
        simulation = simulate(settings, run_plan, count)
        _rows.append(
            {
                "cell": settings.cell,
                "parameters": run_plan.cost.parameters.total,
                "processes": count,
                "layout": simulation.layout,
                "micro_batches": simulation.micro_batches,
                "peak": simulation.peak,
                "memory": simulation.memory,
                "traffic": simulation.traffic,
                "seconds": {
                    "computing": simulation.computing_seconds,
                    "exchanging": simulation.exchanging_seconds,
                },
            }
        )


def _table(column: str, columns: Sequence[str], unit: float) -> rich.table.Table:
    """Return a table of the bytes of ``memory`` or of ``traffic``, in a unit."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("cell", no_wrap=True)
    for name in ("processes", "micro-batches", *columns):
        table.add_column(name, justify="right")
    for row in _rows:
        sizes = row[column] | {"peak": row["peak"]}
        values = (f"{sizes.get(name, 0) / unit:,.1f}" for name in columns)
        table.add_row(row["cell"], str(row["processes"]), str(row["micro_batches"]), *values)
    return table


if __name__ == "__main__":
    main()
