"""Prints the cells of a study: parameters, FLOPs, state, and what is done. Trains nothing.

    python -m experiments.plan study=compare
    python -m experiments.plan -m backbone=glob(*) task=text
    python -m experiments.plan study=compare --watch

``--watch`` shows instead how far a study is while others run it, until all its runs have ended; where the
output is no terminal it shows that once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import rich.console
import rich.table
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.config.hydra_app import start
from experiments.config.sections import read_sections
from experiments.run.live_view import Planned, watch
from experiments.runtime.console import count
from experiments.runtime.errors import ConfigError, RunError
from experiments.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from experiments.run.settings import Settings

WATCH = "--watch"

_cells: list[dict[str, Any]] = []
_watched: dict[str, list[Planned]] = {}


def main() -> None:
    watching = WATCH in sys.argv
    # One process, whatever launcher the study asks for: the rows are gathered here.
    sys.argv[1:] = [*(word for word in sys.argv[1:] if word != WATCH), "hydra/launcher=basic"]
    start(_note if watching else _collect)
    for study, watched in _watched.items():
        watch(study, watched)
    if not _cells:
        return  # watched, or --help or --cfg was all that was asked
    rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else 150).print(_table())
    refused = [cell for cell in _cells if "refused" in cell]
    for cell in refused:
        sys.stderr.write(f"error: {cell['cell']}: {cell['refused']}\n")
    done = sum(cell["status"] == "done" for cell in _cells)
    print(f"{done} of {len(_cells)} cells are done; experiments.train with the same words runs the others.")
    if refused:
        sys.exit(ConfigError.exit_code)


def _read(cfg: DictConfig) -> Settings:
    """The settings of a cell. Raises ConfigError, before torch is imported where it can."""
    sections = read_sections(cfg)
    from experiments.run.settings import read_settings

    return read_settings(sections)


def _collect(cfg: DictConfig) -> None:
    """Add the row of a run configuration: its cost, or why it is refused. Builds no model."""
    try:
        settings = _read(cfg)
        cell = {"cell": settings.cell, "seed": settings.seed, "objective": settings.names.objective}
        _cells.append({**cell, **_price(settings), "status": _status(settings)})
    except RunError as error:
        words = " ".join(HydraConfig.get().overrides.task)
        _cells.append({"cell": words, "status": "refused", "refused": str(error)})


def _note(cfg: DictConfig) -> None:
    """Add a run to be watched: its folder and its training budget."""
    settings = _read(cfg)
    planned = Planned(
        cell=settings.cell,
        backbone=settings.names.backbone,
        seed=settings.seed,
        folder=settings.folder,
        tokens=settings.budget.tokens,
    )
    _watched.setdefault(settings.study, []).append(planned)


def _price(settings: Settings) -> dict[str, Any]:
    from experiments.run.plan import plan

    planned = plan(settings)
    cost, length = planned.cost, planned.task.sequence_length
    tokens_per_step = settings.budget.batch_size * length
    steps = max(1, settings.budget.tokens // tokens_per_step)
    return {
        "body": cost["parameters"]["body"],
        "off": cost["matched"]["residual"],
        "total": cost["parameters"]["total"],
        "active": cost["parameters"]["active"],
        "flops": cost["flops_per_token"],
        "steps": steps,
        "train": cost["flops_per_token"] * steps * tokens_per_step,
        "state": cost["state_bytes_2k"],
    }


def _status(settings: Settings) -> str:
    """``done``, ``failed: why``, ``begun at step N`` or ``missing``."""
    folder = RunFolder(settings.folder)
    result = folder.result()
    if result is not None:
        if result["status"] == "complete":
            return "done"
        return f"{result['status']}: {str(result['message']).splitlines()[0]}"
    steps = sorted(folder.checkpoints.glob("step-*"))
    if steps:
        return f"begun, step {int(steps[-1].name.split('-')[1])}"
    return "begun" if folder.root.exists() else "missing"


def _table() -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE, title=None)
    for name in ("cell", "objective"):
        table.add_column(name, no_wrap=True)
    for name in (
        "seed",
        "body parameters",
        "total",
        "active",
        "FLOPs/token",
        "steps",
        "FLOPs",
        "state at 2k",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", min_width=10, overflow="fold")
    for c in _cells:
        if "refused" in c:
            continue
        table.add_row(
            c["cell"],
            c["objective"],
            str(c["seed"]),
            f"{c['body']:,} ({c['off']:+.2%})",
            f"{c['total']:,}",
            f"{c['active']:,}",
            count(c["flops"]),
            f"{c['steps']:,}",
            count(c["train"]),
            f"{count(c['state'])}B" if c["state"] else "none",
            c["status"],
        )
    return table


if __name__ == "__main__":
    main()
