"""Print the runs of a study: parameters, FLOPs, decoding state and status. Nothing is trained.

    archbench plan study=compare
    archbench plan -m backbone=glob(*) task=text
    archbench plan study=compare --watch

``--watch`` prints instead the progress of a study that other processes run, until all its runs have ended; if
the output is not a terminal, only once. ``--list`` prints a line of JSON for each run instead, without its
cost: names, digest, seed and status, or the reason why it is rejected.

If the peak of the device is known (``device=h100``), memory of each GPU by part, GPU hours, disk and a time
limit for SLURM are estimated, too, for ``parallel.nodes`` and ``parallel.gpus_per_node``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import rich.console
import rich.table
import rich.text

from archbench.experiments.config.cells import Cell
from archbench.experiments.config.hydra_app import for_cells
from archbench.experiments.config.options import take_options
from archbench.experiments.config.sections import AXIS_UNITS, read_sections
from archbench.experiments.run.estimate.resources import estimate
from archbench.experiments.run.estimate.stand_in import with_stand_in
from archbench.experiments.run.estimate.tables import resource_tables, too_large
from archbench.experiments.run.listed_run import listed_runs, run_status
from archbench.experiments.run.live_view import watch
from archbench.experiments.run.plan import plan
from archbench.experiments.run.planned import Planned
from archbench.experiments.run.settings import read_settings
from archbench.experiments.runtime.console import coloured, count, plain_table, plural, print_tables
from archbench.experiments.runtime.errors import ConfigError, RunError
from archbench.experiments.runtime.preemption import stops_at_once

if TYPE_CHECKING:
    from archbench.experiments.run.estimate.resources import Resources
    from archbench.experiments.run.settings import Settings
    from archbench.experiments.tracking.run_files import PlannedCost


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Options of ``archbench plan``."""

    watch: bool = False
    """Follow a study until all its runs have ended."""
    list: bool = False
    """Print a line of JSON for each run."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run in the tables."""

    settings: Settings
    cost: PlannedCost
    status: str
    notes: Sequence[str]
    """Lines above the tables."""
    estimated: Resources | None
    """For a GPU with a known peak (``device=h100``)."""

    @property
    def key(self) -> str:
        """Return what the seeds of a run configuration share."""
        return f"{self.settings.cell}-{self.settings.digest}"


def main(arguments: Sequence[str]) -> None:
    """Print the runs of the overrides."""
    config, words = take_options(PlanConfig, arguments)
    for_cells(_watch if config.watch else _list if config.list else _print, words)


def _print(cells: Sequence[Cell]) -> None:
    """Print the tables of runs, then the reasons of those that are rejected."""
    rows, rejected = [], []
    for cell in cells:
        try:
            rows.append(_row(_read(cell)))
        except RunError as error:
            rejected.append((cell, error))
    if rows:
        print_tables(*_report(rows), *_resources(rows))
    for cell, reason in rejected:
        cell.report(reason)
    done = sum(row.status in ("done", "stored") for row in rows)
    runs, verb = plural(len(cells), "run"), "is" if len(cells) == 1 else "are"
    print(f"{done} of {runs} {verb} done; archbench train with the same arguments runs the others.")
    if rejected:
        sys.exit(rejected[0][1].exit_code)


def _read(cell: Cell) -> Settings:
    """Return the settings of a run. Raises ConfigError, if possible before torch is imported."""
    if cell.mistake:
        raise ConfigError(cell.mistake)
    sections = read_sections(cell.select())

    return read_settings(sections, untuned=True)


def _list(cells: Sequence[Cell]) -> None:
    """Print each run as a line of JSON. Builds no model and opens no data."""
    for run in listed_runs(cells):
        filled = {key: value for key, value in dataclasses.asdict(run).items() if value is not None}
        print(json.dumps(filled), flush=True)
    wrong = [cell for cell in cells if cell.mistake]
    for cell in wrong:
        cell.report(cell.mistake)
    if wrong:
        sys.exit(ConfigError.exit_code)


def _row(settings: Settings) -> Row:
    """Return size and cost of a run. Builds no model, but may prepare data."""
    with stops_at_once():  # it may prepare data
        estimated_settings, stands_in = with_stand_in(settings)
        run_plan = plan(estimated_settings)
    model = run_plan.sizes.on_meta(settings.backbone_class, run_plan.matched.config)
    not_prepared = (
        f"{settings.names.task} is not prepared yet: its cost is computed on the embedded text, and its "
        "first run prepares it"
    )
    return Row(
        settings=settings,
        cost=run_plan.cost,
        status=run_status(settings),
        notes=[
            *[not_prepared] * stands_in,
            *(f"warning: {settings.cell}: {line}" for line in run_plan.matched.config.warnings),
            *(f"{settings.cell}: {line}" for line in settings.optimizer.division(model)),
        ],
        estimated=None if settings.device.peak_flops is None else estimate(estimated_settings, run_plan),
    )


def _watch(cells: Sequence[Cell]) -> None:
    """Follow the runs, by their folders and training budgets."""
    watched: dict[str, list[Planned]] = {}
    for cell in cells:
        try:
            settings = _read(cell)
        except RunError as error:
            cell.report(error)
            continue
        watched.setdefault(settings.study.name, []).append(Planned.of(settings))
    for study, planned in watched.items():
        watch(study, planned)


def _report(rows: Sequence[Row]) -> list[rich.console.RenderableType]:
    """Return the notes, then of each task and scale a heading with its tables and the reasons of failures."""
    parts: list[rich.console.RenderableType] = list(dict.fromkeys(note for row in rows for note in row.notes))
    tasks: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        names = row.settings.names
        tasks.setdefault(f"{names.task}, {names.scale}", {}).setdefault(row.key, []).append(row)
    for task, configurations in tasks.items():
        of_task = [row for seeds in configurations.values() for row in seeds]
        parts += [
            *[""] * bool(parts),
            *(rich.text.Text(line, style="bold") for line in _equal_sizes(task, of_task)),
        ]
        parts += [_costs(list(configurations.values())), "", _setups(list(configurations.values()))]
        parts += [
            rich.text.Text(f"{row.settings.names.backbone} s{row.settings.seed} {row.status}", style="red")
            for row in of_task
            if ": " in row.status
        ]
    return [*parts, ""]


def _equal_sizes(task: str, rows: list[Row]) -> list[str]:
    """Return the size that is equal for the models of a task, and mixtures with all experts counted."""
    sizes = [(row.settings.names.backbone, row.cost.matched) for row in rows]
    lines = [
        f"{task}: widths as given"
        if size.target is None
        else f"{task}, held equal: {AXIS_UNITS[size.axis]}, {size.target:,} ({size.axis})"
        for _, size in sizes
    ]
    lines += [f"{model} {size.note}" for model, size in sizes if size.note]
    return list(dict.fromkeys(lines))


def _costs(configurations: list[list[Row]]) -> rich.table.Table:
    """Return size, cost and status of each run configuration, whose seeds share a row."""
    heads = ("mismatch", "non-\nemb.", "total", "active", "FLOPs/\ntoken", "FLOPs", "seed")
    table = plain_table("model", *heads, "status", left=("status",))
    for seeds in configurations:
        cost = seeds[0].cost
        parameters, matched = cost.parameters, cost.matched
        table.add_row(
            seeds[0].settings.names.backbone,
            "" if matched.target is None else f"{matched.residual:+.2%}",
            *(count(value) for value in (parameters.body, parameters.total, parameters.active)),
            count(cost.flops_per_token),
            count(cost.planned.flops),
            ",".join(str(row.settings.seed) for row in seeds),
            _status_of(seeds),
        )
    return table


def _status_of(seeds: list[Row]) -> rich.text.Text:
    """Return the status of a run configuration, without reasons; those of its seeds if they differ."""
    seeds_of: dict[str, list[str]] = {}
    for row in seeds:
        seeds_of.setdefault(row.status.split(": ")[0], []).append(str(row.settings.seed))
    if len(seeds_of) == 1:
        return coloured(next(iter(seeds_of)))
    parts = [coloured(f"{status}: {','.join(of)}") for status, of in seeds_of.items()]
    return rich.text.Text("; ").join(parts)


def _setups(configurations: list[list[Row]]) -> rich.table.Table:
    """Return shape, batch, learning rate and decoding state of each run configuration."""
    heads = ("d_model", "layers", "heads", "state\nsize", "batch x\nlength", "lr", "tokens", "state\nat 2k")
    table = plain_table("model", *heads)
    for seeds in configurations:
        cost = seeds[0].cost
        setup = cost.setup
        shape = (setup.d_model, setup.num_layers, setup.num_heads, setup.d_state)
        table.add_row(
            seeds[0].settings.names.backbone,
            *("-" if value is None else str(value) for value in shape),
            f"{setup.batch_size} x {setup.sequence_length}",
            f"{setup.learning_rate:g}",
            count(cost.planned.tokens),
            f"{count(cost.state_bytes_2k)}B" if cost.state_bytes_2k else "none",
        )
    return table


def _resources(rows: Sequence[Row]) -> list[rich.console.RenderableType]:
    """Return memory, hours and disk for GPUs with a known peak."""
    estimated = {
        row.key: (row.settings.cell, row.settings.parallel, row.settings.device, row.estimated)
        for row in rows
        if row.estimated is not None
    }
    if not estimated:
        return []

    estimates = list(estimated.values())
    memory, cluster = resource_tables(estimates)
    return [
        "Memory of each GPU at the peak of a step, estimated, in GiB:", memory, "",
        "To request from a cluster:", cluster, *too_large(estimates), "",
    ]  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
