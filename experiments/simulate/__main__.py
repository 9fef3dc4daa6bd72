"""Simulate a training step of many processes: memory of one by part, and bytes exchanged by collective.

    archbench cost simulate processes=64 task=text scale=1_3b parallel=fsdp budget.batch_size=64
    archbench cost simulate processes=8,64 output=steps.json -m backbone=decoder,mamba2 parallel=fsdp

One process simulates rank 0 on a CPU, with PyTorch's fake process group and tensors without memory: it needs
no GPU, no network, and no data but the task's. Kernels for GPUs are replaced by PyTorch operations, which
save more for the backward pass of a state-space model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rich.box
import rich.console
import rich.table
from omegaconf import DictConfig

from archbench.experiments.config.hydra_app import start
from archbench.experiments.config.options import take_options
from archbench.experiments.config.sections import read_sections
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.console import print_tables

if TYPE_CHECKING:
    from archbench.experiments.simulate.step import Simulation

_processes: list[int] = []
_rows: list[tuple[str, int, Simulation]] = []
"""Run configuration, number of parameters, and simulation."""


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
    simulations = [simulation for _, _, simulation in _rows]
    memory = [{"peak": simulation.peak} | simulation.memory for simulation in simulations]
    print("Memory of one process at the peak of a step, in MiB:")
    print_tables(_table(list(memory[0]), memory, 2**20), keys=3)
    traffic = [simulation.traffic for simulation in simulations]
    print("Bytes that a process exchanges in a step, in MB:")
    print_tables(_table(sorted({kind for sizes in traffic for kind in sizes}), traffic, 1e6), keys=3)
    seconds = [simulation.seconds for simulation in simulations]
    if all(None not in times.values() for times in seconds):
        print("Milliseconds of a step, at best, of computing and of exchanging by the device's links:")
        print_tables(_table(["computing", "exchanging"], seconds, 1e-3), keys=3)
    if config.output:
        content = [
            {
                "cell": cell,
                "parameters": parameters,
                "processes": simulation.processes,
                "layout": simulation.layout,
                "micro_batches": simulation.micro_batches,
                "peak": simulation.peak,
                "memory": simulation.memory,
                "traffic": simulation.traffic,
                "seconds": simulation.seconds,
            }
            for cell, parameters, simulation in _rows
        ]
        write_json(Path(config.output), content)


def _collect(cfg: DictConfig) -> None:
    """Add a row for each number of processes. Builds no weights."""
    sections = read_sections(cfg)
    from archbench.experiments.run.plan import plan
    from archbench.experiments.run.settings import read_settings
    from archbench.experiments.simulate.step import simulate

    settings = read_settings(sections, untuned=True)
    run_plan = plan(settings)
    for count in _processes:
        simulation = simulate(settings, run_plan, count)
        _rows.append((settings.cell, run_plan.cost.parameters.total, simulation))


def _table(
    columns: Sequence[str], quantities: Sequence[Mapping[str, float | None]], unit: float
) -> rich.table.Table:
    """Return a table with a row of quantities for each simulation, in a unit."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("cell", no_wrap=True)
    for name in ("processes", "micro-batches", *columns):
        table.add_column(name, justify="right")
    for (cell, _, simulation), row in zip(_rows, quantities, strict=True):
        values = (f"{(row.get(name) or 0) / unit:,.1f}" for name in columns)
        table.add_row(cell, str(simulation.processes), str(simulation.micro_batches), *values)
    return table


if __name__ == "__main__":
    main()
