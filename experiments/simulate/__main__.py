"""Simulate a training step of many processes: memory of one by part, and bytes exchanged by collective.

    archbench cost simulate processes=64 task=text scale=1_3b parallel=fsdp budget.batch_size=64
    archbench cost simulate processes=8,64 output=steps.json -m backbone=decoder,mamba2 parallel=fsdp

One process simulates rank 0 on a CPU, with PyTorch's fake process group and tensors without memory: it needs
no GPU, no network, and no data but the task's. Kernels for GPUs are replaced by PyTorch operations, which
save more for the backward pass of a state-space model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rich.box
import rich.console
import rich.table
from omegaconf import DictConfig

from archbench.experiments.config.hydra_app import for_each_cell
from archbench.experiments.config.options import take_options
from archbench.experiments.config.sections import read_sections
from archbench.experiments.run.plan import plan
from archbench.experiments.run.settings import read_settings
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.console import print_tables
from archbench.experiments.simulate.step import simulate

if TYPE_CHECKING:
    from archbench.experiments.simulate.step import Simulation


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


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run configuration with a number of processes."""

    cell: str
    parameters: int
    simulation: Simulation


def main(arguments: Sequence[str]) -> None:
    """Simulate each run of the overrides, and print tables of all of them."""
    config, words = take_options(SimulateConfig, arguments, __doc__)
    rows: list[Row] = []
    processes = [int(part) for part in config.processes.split(",")]
    for_each_cell(lambda cfg: rows.extend(_simulated(cfg, processes)), words)
    if rows:
        _print(rows, config.output)


def _print(rows: Sequence[Row], output: str) -> None:
    """Print the tables, and write the results to a JSON file unless ``output`` is empty."""
    simulations = [row.simulation for row in rows]
    memory = [{"peak": simulation.peak} | simulation.memory for simulation in simulations]
    print("Memory of one process at the peak of a step, in MiB:")
    print_tables(_table(rows, list(memory[0]), memory, 2**20), keys=3)
    traffic = [simulation.traffic for simulation in simulations]
    print("Bytes that a process exchanges in a step, in MB:")
    kinds = sorted({kind for sizes in traffic for kind in sizes})
    print_tables(_table(rows, kinds, traffic, 1e6), keys=3)
    seconds = [simulation.seconds for simulation in simulations]
    if all(None not in times.values() for times in seconds):
        print("Milliseconds of a step, at best, of computing and of exchanging by the device's links:")
        print_tables(_table(rows, ["computing", "exchanging"], seconds, 1e-3), keys=3)
    if output:
        content = [
            {
                "cell": row.cell,
                "parameters": row.parameters,
                "processes": row.simulation.processes,
                "layout": row.simulation.layout,
                "micro_batches": row.simulation.micro_batches,
                "peak": row.simulation.peak,
                "memory": row.simulation.memory,
                "traffic": row.simulation.traffic,
                "seconds": row.simulation.seconds,
            }
            for row in rows
        ]
        write_json(Path(output), content)


def _simulated(cfg: DictConfig, processes: Sequence[int]) -> Iterator[Row]:
    """Yield the simulation of a run with each number of processes. Builds no weights."""
    sections = read_sections(cfg)

    settings = read_settings(sections, untuned=True)
    run_plan = plan(settings)
    for count in processes:
        simulation = simulate(settings, run_plan, count)
        yield Row(cell=settings.cell, parameters=run_plan.cost.parameters.total, simulation=simulation)


def _table(
    rows: Sequence[Row], columns: Sequence[str], quantities: Sequence[Mapping[str, float | None]], unit: float
) -> rich.table.Table:
    """Return a table with a row of quantities for each simulation, in a unit."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("cell", no_wrap=True)
    for name in ("processes", "micro-batches", *columns):
        table.add_column(name, justify="right")
    for row, values in zip(rows, quantities, strict=True):
        texts = (f"{(values.get(name) or 0) / unit:,.1f}" for name in columns)
        simulation = row.simulation
        table.add_row(row.cell, str(simulation.processes), str(simulation.micro_batches), *texts)
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
