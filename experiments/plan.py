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

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import rich.console
import rich.table
import rich.text
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from archbench.experiments.config.hydra_app import start
from archbench.experiments.config.options import take_options
from archbench.experiments.config.sections import AXIS_UNITS, read_sections
from archbench.experiments.run.live_view import watch
from archbench.experiments.run.planned import Planned
from archbench.experiments.runtime.console import coloured, count, plain_table, plural, print_tables
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, RunError
from archbench.experiments.runtime.preemption import stops_at_once
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from archbench.experiments.run.estimate.tables import Estimated
    from archbench.experiments.run.settings import Settings
    from archbench.experiments.tracking.run_files import PlannedCost


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run, as a row of the tables."""

    name: str
    """CELL; for a rejected run its overrides."""
    status: str
    exit_code: int = 0
    refused: str = ""
    """Reason why it is rejected; empty if the reason is printed already."""
    model: str = ""
    task: str = ""
    """Task and scale, which have tables of their own."""
    key: str = ""
    """CELL-DIGEST."""
    seed: int = 0
    cost: PlannedCost | None = None
    """None for a rejected run."""


_cells: list[Cell] = []
_watched: dict[str, list[Planned]] = {}
_notes: list[str] = []
_estimated: list[tuple[str, Estimated]] = []
"""Digest and estimate of each run configuration for a GPU with a known peak (``device=h100``)."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Options of ``archbench plan``."""

    watch: bool = False
    """Follow a study until all its runs have ended."""
    list: bool = False
    """Print a line of JSON for each run."""


def main() -> None:
    """Print the runs of the overrides."""
    config = take_options(PlanConfig)
    sys.argv.append("hydra/launcher=basic")  # one process, which collects the rows
    start(_watch if config.watch else _list if config.list else _collect, refused=_add_rejected)
    for study, watched in _watched.items():
        watch(study, watched)
    if not _cells:
        return  # after --watch, --help or --cfg
    print_tables(*_report(), *_resources())
    rejected = [cell for cell in _cells if cell.cost is None]
    for cell in rejected:
        if cell.refused:
            sys.stderr.write(redact(f"error: {cell.name}: {cell.refused}\n"))
    done = sum(cell.status in ("done", "stored") for cell in _cells)
    runs, verb = plural(len(_cells), "run"), "is" if len(_cells) == 1 else "are"
    print(f"{done} of {runs} {verb} done; archbench train with the same arguments runs the others.")
    if rejected:
        sys.exit(rejected[0].exit_code)


def _read(cfg: DictConfig) -> Settings:
    """Return the settings of a run. Raises ConfigError, if possible before torch is imported."""
    sections = read_sections(cfg)
    from archbench.experiments.run.settings import read_settings

    return read_settings(sections, untuned=True)


def _list(cfg: DictConfig) -> None:
    """Print a run configuration as a line of JSON. Builds no model and opens no data."""
    overrides = HydraConfig.get().overrides.task
    line: dict[str, object] = {
        "words": list(overrides),
        "task": cfg.names.task,
        "backbone": cfg.names.backbone,
    }
    try:
        settings = _read(cfg)
        line |= {"cell": settings.cell, "digest": settings.digest, "seed": settings.seed}
        line |= {"folder": str(settings.folder), "status": _status(settings)}
    except RunError as error:
        line |= {"seed": cfg.seed, "status": "refused", "refused": str(error)}
    print(json.dumps(line), flush=True)


def _collect(cfg: DictConfig) -> None:
    """Add the row of a run: its cost, or the reason why it is rejected. Builds no model."""
    try:
        settings = _read(cfg)
        from archbench.experiments.run.estimate.resources import estimate
        from archbench.experiments.run.estimate.stand_in import with_stand_in
        from archbench.experiments.run.plan import plan

        key = f"{settings.cell}-{settings.digest}"
        with stops_at_once():  # it may prepare data
            estimated_settings, stands_in = with_stand_in(settings)
            run_plan = plan(estimated_settings)
        if stands_in:
            _notes.append(
                f"{settings.names.task} is not prepared yet: its cost is computed on the embedded text, "
                "and its first run prepares it"
            )
        _notes.extend(f"warning: {settings.cell}: {line}" for line in run_plan.matched.config.warnings)
        model = run_plan.sizes.on_meta(settings.backbone_class, run_plan.matched.config)
        _notes.extend(f"{settings.cell}: {line}" for line in settings.optimizer.division(model))
        _cells.append(
            Cell(
                name=settings.cell,
                status=_status(settings),
                model=settings.names.backbone,
                task=f"{settings.names.task}, {settings.names.scale}",
                key=key,
                seed=settings.seed,
                cost=run_plan.cost,
            )
        )
        if settings.device.peak_flops is not None and key not in dict(_estimated):
            resources = estimate(estimated_settings, run_plan)
            _estimated.append((key, (settings.cell, settings.parallel, settings.device, resources)))
    except RunError as error:
        name = " ".join(HydraConfig.get().overrides.task)
        _cells.append(Cell(name=name, status="refused", refused=str(error), exit_code=error.exit_code))


def _add_rejected(sweep: DictConfig, overrides: Sequence[str], reason: str) -> None:
    """Add the row of a run that cannot be composed. The reason is printed already."""
    _cells.append(Cell(name=" ".join(overrides), status="refused", exit_code=ConfigError.exit_code))


def _watch(cfg: DictConfig) -> None:
    """Add a run to be watched: its folder and its training budget."""
    try:
        settings = _read(cfg)
    except RunError as error:
        sys.stderr.write(redact(f"error: {' '.join(HydraConfig.get().overrides.task)}: {error}\n"))
        return
    _watched.setdefault(settings.study.name, []).append(Planned.of(settings))


def _status(settings: Settings) -> str:
    """Return ``done``, ``stored``, ``failed: WHY``, ``unreadable: WHY``, ``begun, step N`` or ``missing``."""
    from archbench.experiments.run.skipped_cells import stored_status

    folder = RunFolder(settings.folder)
    try:
        result = folder.result()
    except CheckpointError as error:  # the other runs are listed nevertheless
        return f"{RunStatus.UNREADABLE}: {str(error).splitlines()[0]}"
    if result is not None:
        if result.status == RunStatus.COMPLETE:
            return "done"
        return f"{result.status}: {str(result.message).splitlines()[0]}"
    if (stored := stored_status(settings)) is not None:
        return "stored" if stored == "complete" else f"stored: {stored}"
    steps = sorted(folder.checkpoints.glob("step-*"))
    if steps:
        return f"begun, step {int(steps[-1].name.split('-')[1])}"
    return "begun" if folder.root.exists() else "missing"


def _report() -> list[rich.console.RenderableType]:
    """Return the notes, then of each task and scale a heading with its tables and the reasons of failures."""
    parts: list[rich.console.RenderableType] = list(dict.fromkeys(_notes))
    tasks: dict[str, dict[str, list[Cell]]] = {}
    for cell in _cells:
        if cell.cost is not None:
            tasks.setdefault(cell.task, {}).setdefault(cell.key, []).append(cell)
    for task, cells in tasks.items():
        of_task = [cell for seeds in cells.values() for cell in seeds]
        parts += [
            *[""] * bool(parts),
            *(rich.text.Text(line, style="bold") for line in _equal_sizes(task, of_task)),
        ]
        parts += [_costs(list(cells.values())), "", _setups(list(cells.values()))]
        parts += [
            rich.text.Text(f"{cell.model} s{cell.seed} {cell.status}", style="red")
            for cell in of_task
            if ": " in cell.status
        ]
    return [*parts, ""]


def _equal_sizes(task: str, cells: list[Cell]) -> list[str]:
    """Return the size that is equal for the models of a task, and mixtures with all experts counted."""
    sizes = [(cell.model, cell.cost.matched) for cell in cells if cell.cost is not None]
    lines = [
        f"{task}: widths as given"
        if size.target is None
        else f"{task}, held equal: {AXIS_UNITS[size.axis]}, {size.target:,} ({size.axis})"
        for _, size in sizes
    ]
    lines += [f"{model} {size.note}" for model, size in sizes if size.note]
    return list(dict.fromkeys(lines))


def _costs(rows: list[list[Cell]]) -> rich.table.Table:
    """Return size, cost and status of each run configuration, whose seeds share a row."""
    heads = ("mismatch", "non-\nemb.", "total", "active", "FLOPs/\ntoken", "FLOPs", "seed")
    table = plain_table("model", *heads, "status", left=("status",))
    for seeds in rows:
        cost = seeds[0].cost
        assert cost is not None, "rejected runs have no row"
        parameters, matched = cost.parameters, cost.matched
        table.add_row(
            seeds[0].model,
            "" if matched.target is None else f"{matched.residual:+.2%}",
            *(count(value) for value in (parameters.body, parameters.total, parameters.active)),
            count(cost.flops_per_token),
            count(cost.planned.flops),
            ",".join(str(cell.seed) for cell in seeds),
            _status_of(seeds),
        )
    return table


def _status_of(seeds: list[Cell]) -> rich.text.Text:
    """Return the status of a run configuration, without reasons; those of its seeds if they differ."""
    seeds_of: dict[str, list[str]] = {}
    for cell in seeds:
        seeds_of.setdefault(cell.status.split(": ")[0], []).append(str(cell.seed))
    if len(seeds_of) == 1:
        return coloured(next(iter(seeds_of)))
    parts = [coloured(f"{status}: {','.join(of)}") for status, of in seeds_of.items()]
    return rich.text.Text("; ").join(parts)


def _setups(rows: list[list[Cell]]) -> rich.table.Table:
    """Return shape, batch, learning rate and decoding state of each run configuration."""
    heads = ("d_model", "layers", "heads", "state\nsize", "batch x\nlength", "lr", "tokens", "state\nat 2k")
    table = plain_table("model", *heads)
    for seeds in rows:
        cost = seeds[0].cost
        assert cost is not None, "rejected runs have no row"
        setup = cost.setup
        shape = (setup.d_model, setup.num_layers, setup.num_heads, setup.d_state)
        table.add_row(
            seeds[0].model,
            *("-" if value is None else str(value) for value in shape),
            f"{setup.batch_size} x {setup.sequence_length}",
            f"{setup.learning_rate:g}",
            count(cost.planned.tokens),
            f"{count(cost.state_bytes_2k)}B" if cost.state_bytes_2k else "none",
        )
    return table


def _resources() -> list[rich.console.RenderableType]:
    """Return memory, hours and disk for GPUs with a known peak."""
    if not _estimated:
        return []
    from archbench.experiments.run.estimate.tables import resource_tables, too_large

    estimates = [estimate for _, estimate in _estimated]
    memory, cluster = resource_tables(estimates)
    return [
        "Memory of each GPU at the peak of a step, estimated, in GiB:", memory, "",
        "To request from a cluster:", cluster, *too_large(estimates), "",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
