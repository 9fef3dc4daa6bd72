"""Trains one run, or every missing run of a sweep.

    archbench train backbone=mamba task=recall scale=nano seed=0
    archbench train -m backbone=decoder,mamba seed=0,1,2
    archbench train study=compare
    archbench train torchrun --nproc-per-node 2 -m archbench.experiments.train backbone=decoder parallel=fsdp

A run that is complete, diverged or ran out of memory is not trained again; one that was stopped continues.
A run of a sweep or a study that is rejected leaves a record, and the remaining ones are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from archbench.experiments.config.hydra_app import start
from archbench.experiments.config.sections import read_sections
from archbench.experiments.config.sweep import Parallel
from archbench.experiments.run.live_view import following
from archbench.experiments.run.planned import Planned
from archbench.experiments.run.skipped_cells import RequestedCell, refuse_uncomposed
from archbench.experiments.run.summary import summary
from archbench.experiments.run.sweep_schedule import RunCost, arrange
from archbench.experiments.runtime.errors import ConfigError, RunError
from archbench.experiments.runtime.machine import process_rank
from archbench.experiments.runtime.preemption import stops_at_once
from archbench.experiments.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from archbench.experiments.run.settings import Settings


def train(cfg: DictConfig) -> float:
    """Train the run of a configuration, and return its validation score for a sweeper that searches."""
    requested, settings = RequestedCell.composed(cfg), None
    with stops_at_once() if process_rank().size == 1 else nullcontext():
        try:
            settings = read(cfg)
            requested.forget(settings.folder)
            if not is_stored(settings):
                from archbench.experiments.run.run import run
                from archbench.experiments.runtime.errors import as_run_errors
                from archbench.experiments.training.parallel import collectives

                with as_run_errors(), collectives.left_at_end():
                    run(settings)
        except RunError as error:
            requested.refuse(error, settings)
            raise
    return RunFolder(settings.folder).score_to_minimize()


def read(cfg: DictConfig) -> Settings:
    """Return the settings of a run. Raises ConfigError."""
    sections = read_sections(cfg)
    processes = process_rank().size
    if processes > 1 and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise ConfigError(
            f"a sweep (-m, or a study) with {processes} processes: they train one run together, so start "
            "torchrun for each run"
        )
    from archbench.experiments.run.settings import read_settings

    return read_settings(sections)


def cost(cfg: DictConfig) -> RunCost:
    """Return what the run of a configuration takes."""
    try:
        settings = read(cfg)
        from archbench.experiments.run.estimate.run_cost import estimate_cost

        return estimate_cost(settings)
    except Exception:  # the run itself meets it too, and records it
        return RunCost()


def listed(cfg: DictConfig) -> RunCost:
    """Return the run of a configuration, without its cost."""
    try:
        return RunCost(planned=Planned.of(read(cfg)))
    except Exception:  # the run itself meets it too, and records it
        return RunCost()


def show(costs: Sequence[RunCost], runs: Sequence[Sequence[str]]) -> AbstractContextManager[None]:
    """Return a context with the view of a sweep. Runs that cannot be read, which are rejected, are left out.

    Args:
        costs: of the runs, each with the settings of one seed.
        runs: the overrides of each run.
    """
    planned = []
    for cost_of_run, words in zip(costs, runs, strict=True):
        if (run := cost_of_run.planned) is None:
            continue
        seeds = [int(word.removeprefix("seed=")) for word in words if word.startswith("seed=")]
        planned.append(run.with_seed(seeds[-1]) if seeds else run)
    if not planned:
        return nullcontext()
    return following(planned[0].folder.parents[1].name, planned)


def is_stored(settings: Settings) -> bool:
    """Return True, and say so, if a frame of results holds the run (``study.stored``)."""
    from archbench.experiments.run.skipped_cells import stored_status

    status = None if RunFolder(settings.folder).has_final_status else stored_status(settings)
    if status is not None:
        print(f"{settings.key}: {status}, a row of {settings.resolved['study']['stored']}", flush=True)
    return status is not None


def end(sweep: DictConfig) -> None:
    """Prints what became of the runs of a study, after a sweep of it."""
    print("\n".join(summary(Path(str(sweep.runs)) / str(sweep.study.name))), flush=True)


if __name__ == "__main__":
    parallel = Parallel(cost=cost, listed=listed, arrange=arrange, show=show)
    start(train, refused=refuse_uncomposed, ended=end, parallel=parallel)
