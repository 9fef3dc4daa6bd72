"""Prints the cells of a study: parameters, FLOPs, state, and what is done. Trains nothing.

    archbench plan study=compare
    archbench plan -m backbone=glob(*) task=text
    archbench plan study=compare --watch

``--watch`` shows instead how far a study is while others run it, until all its runs have ended; where the
output is no terminal it shows that once. ``--list`` prints a line of JSON for each run instead, without its
cost: its names, digest, seed, status, or the reason why it is refused.

Where the device states its peak (``device=h100``), memory of each GPU by part, GPU hours, disk and a time
limit for SLURM are estimated too, for ``parallel.nodes`` and ``parallel.gpus_per_node``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import rich.console
import rich.table
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.config.hydra_app import start
from experiments.config.options import take_options
from experiments.config.sections import AXIS_UNITS, read_sections
from experiments.run.live_view import Planned, watch
from experiments.runtime.console import count, plural
from experiments.runtime.errors import CheckpointError, ConfigError, RunError
from experiments.runtime.preemption import stops_at_once
from experiments.runtime.run_status import RunStatus
from experiments.runtime.secrets import redact
from experiments.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from experiments.run.estimate.tables import Estimated
    from experiments.run.settings import Settings
    from experiments.tracking.run_files import PlannedCost

WIDTH = 100
"""Characters of a line where the output is no terminal."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run as the tables show it."""

    name: str
    """CELL; the words of a run that is refused."""
    status: str
    exit_code: int = 0
    refused: str = ""
    """Reason why it is refused; empty where that is printed already."""
    task: str = ""
    key: str = ""
    """CELL-DIGEST."""
    seed: int = 0
    cost: PlannedCost | None = None
    """None of a run that is refused."""


_cells: list[Cell] = []
_watched: dict[str, list[Planned]] = {}
_notes: list[str] = []
_estimated: list[tuple[str, Estimated]] = []
"""Digest and estimate of each run configuration for a GPU whose peak is stated (``device=h100``)."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Options of ``archbench plan``."""

    watch: bool = False
    """Follow a study until all its runs have ended."""
    list: bool = False
    """Print a line of JSON for each run."""


def main() -> None:
    """Print the runs that the words ask for."""
    config = take_options(PlanConfig)
    sys.argv.append("hydra/launcher=basic")  # one process: the rows are gathered here
    start(_note if config.watch else _list if config.list else _collect, refused=_refuse)
    for study, watched in _watched.items():
        watch(study, watched)
    if not _cells:
        return  # watched, or --help or --cfg was all that was asked
    console = rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for line in _held_equal():
        console.print(line)
    for line in dict.fromkeys(_notes):
        console.print(line)
    for table in _tables():
        console.print()
        console.print(table)
    console.print()
    if _estimated:
        _print_estimates(console)
    refused = [cell for cell in _cells if cell.cost is None]
    for cell in refused:
        if cell.refused:
            sys.stderr.write(redact(f"error: {cell.name}: {cell.refused}\n"))
    done = sum(cell.status in ("done", "stored") for cell in _cells)
    runs, verb = plural(len(_cells), "run"), "is" if len(_cells) == 1 else "are"
    print(f"{done} of {runs} {verb} done; archbench train with the same words runs the others.")
    if refused:
        sys.exit(refused[0].exit_code)


def _read(cfg: DictConfig) -> Settings:
    """The settings of a cell. Raises ConfigError, before torch is imported where it can."""
    sections = read_sections(cfg)
    from experiments.run.settings import read_settings

    return read_settings(sections, untuned=True)


def _list(cfg: DictConfig) -> None:
    """Print a run configuration as a line of JSON. Builds no model and opens no data."""
    words = HydraConfig.get().overrides.task
    line: dict[str, object] = {"words": list(words), "task": cfg.names.task, "backbone": cfg.names.backbone}
    try:
        settings = _read(cfg)
        line |= {"cell": settings.cell, "digest": settings.digest, "seed": settings.seed}
        line |= {"folder": str(settings.folder), "status": _status(settings)}
    except RunError as error:
        line |= {"seed": cfg.seed, "status": "refused", "refused": str(error)}
    print(json.dumps(line), flush=True)


def _collect(cfg: DictConfig) -> None:
    """Add the row of a run configuration: its cost, or why it is refused. Builds no model."""
    try:
        settings = _read(cfg)
        from experiments.run.estimate.resources import estimate
        from experiments.run.estimate.stand_in import with_stand_in
        from experiments.run.plan import plan

        key = f"{settings.cell}-{settings.digest}"
        with stops_at_once():  # it may prepare data
            priced, stands_in = with_stand_in(settings)
            planned = plan(priced)
        if stands_in:
            _notes.append(
                f"{settings.names.task} is not prepared yet: it is priced on the embedded text, "
                "and its first run prepares it"
            )
        _cells.append(
            Cell(
                name=settings.cell,
                status=_status(settings),
                task=settings.names.task,
                key=key,
                seed=settings.seed,
                cost=planned.cost,
            )
        )
        if settings.device.peak_flops is not None and all(key != known for known, _ in _estimated):
            found = estimate(priced, planned)
            _estimated.append((key, (settings.cell, settings.parallel, settings.device, found)))
    except RunError as error:
        words = " ".join(HydraConfig.get().overrides.task)
        _cells.append(Cell(name=words, status="refused", refused=str(error), exit_code=error.exit_code))


def _refuse(sweep: DictConfig, words: Sequence[str], reason: str) -> None:
    """Add the row of a cell that cannot be composed, whose reason is printed already."""
    _cells.append(Cell(name=" ".join(words), status="refused", exit_code=ConfigError.exit_code))


def _note(cfg: DictConfig) -> None:
    """Add a run to be watched: its folder and its training budget."""
    try:
        settings = _read(cfg)
    except RunError as error:
        sys.stderr.write(redact(f"error: {' '.join(HydraConfig.get().overrides.task)}: {error}\n"))
        return
    planned = Planned(
        cell=settings.cell,
        backbone=settings.names.backbone,
        seed=settings.seed,
        folder=settings.folder,
        tokens=settings.budget.tokens,
        size=settings.scale.target or 1,
    )
    _watched.setdefault(settings.study.name, []).append(planned)


def _status(settings: Settings) -> str:
    """``done``, ``stored``, ``failed: why``, ``unreadable: why``, ``begun, step N`` or ``missing``."""
    from experiments.run.skipped_cells import stored_status

    folder = RunFolder(settings.folder)
    try:
        result = folder.result()
    except CheckpointError as error:  # the other cells are listed all the same
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


def _held_equal() -> list[str]:
    """Return what is held equal on each task, and the mixtures of which all experts are counted."""
    matched = [(cell.task, cell.name, cell.cost.matched) for cell in _cells if cell.cost is not None]
    lines = [
        f"{task}: widths as given"
        if size.target is None
        else f"{task}, held equal: {AXIS_UNITS[size.axis]}, {size.target:,} ({size.axis})"
        for task, _, size in matched
    ]
    lines += [f"{name} {size.note}" for _, name, size in matched if size.note]
    return list(dict.fromkeys(lines))


def _tables() -> list[rich.table.Table]:
    """Return two tables of at most 100 characters: what a cell costs and what is done; then its setup.

    Runs of a cell that differ in their seeds share a row.
    """
    costs = _empty("residual", "body", "total", "active", "FLOPs/token", "FLOPs", "seed", "status")
    setups = _empty("d_model", "layers", "heads", "state", "batch", "length", "lr", "tokens", "at 2k")
    rows: dict[str, list[Cell]] = {}
    for cell in _cells:
        rows.setdefault(cell.key, []).append(cell)
    for seeds in rows.values():
        if (cost := seeds[0].cost) is None:
            continue
        setup, parameters, matched = cost.setup, cost.parameters, cost.matched
        costs.add_row(
            seeds[0].name,
            "" if matched.target is None else f"{matched.residual:+.2%}",
            *(count(number) for number in (parameters.body, parameters.total, parameters.active)),
            count(cost.flops_per_token),
            count(cost.planned.flops),
            ",".join(str(cell.seed) for cell in seeds),
            _statuses(seeds),
        )
        shape = (setup.d_model, setup.num_layers, setup.num_heads, setup.d_state, setup.batch_size)
        setups.add_row(
            seeds[0].name,
            *("-" if number is None else str(number) for number in shape),
            str(setup.sequence_length),
            f"{setup.learning_rate:g}",
            count(cost.planned.tokens),
            f"{count(cost.state_bytes_2k)}B" if cost.state_bytes_2k else "none",
        )
    return [costs, setups]


def _print_estimates(console: rich.console.Console) -> None:
    """Print memory of each GPU and what to ask a cluster for, of the cells whose device states its peak."""
    from experiments.run.estimate.tables import resource_tables, too_large

    cells = [cell for _, cell in _estimated]
    memory, cluster = resource_tables(cells)
    console.print("Memory of each GPU at the peak of a step, estimated, in GiB:")
    console.print(memory)
    console.print("To ask a cluster for:")
    console.print(cluster)
    for line in too_large(cells):
        console.print(line)


def _statuses(seeds: list[Cell]) -> str:
    """Return the status that the seeds share, or that of each."""
    statuses = {cell.status for cell in seeds}
    return (
        statuses.pop() if len(statuses) == 1 else "; ".join(f"{cell.seed}: {cell.status}" for cell in seeds)
    )


def _empty(*columns: str) -> rich.table.Table:
    """Return a table without rows, in which cells and numbers are whole: their columns stand close."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    table.add_column("cell", no_wrap=True)
    for name in columns:
        last = name == "status"
        table.add_column(
            name,
            justify="left" if last else "right",
            no_wrap=not last,
            overflow="fold",
            min_width=10 if last else None,
        )
    return table


if __name__ == "__main__":
    main()
