"""Submits the missing cells of a study to SLURM: prepare data, an array over the cells, then the analysis.

    python -m slurm.submit study=compare                                  what would be submitted
    python -m slurm.submit study=compare submit=true cells_per_task=4     submits it
    python -m slurm.submit -m backbone=decoder,mamba seed=0,1,2 study.name=mine submit=true

Words of its own (submit, cells_per_task, max_running, cluster) apart, it takes those of
experiments.train. Cells that are done, or that an earlier submission has in the queue,
are left out: the same command again submits only what is missing. Run it from the root
of the checkout.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.config.hydra_app import start
from experiments.config.sections import read_sections
from experiments.config.structured import typed
from experiments.runtime.errors import ConfigError, RunError
from experiments.tracking.run_folder import FINAL
from slurm.cells import Cell, job_name, new_folder, submissions, write_submission
from slurm.cluster import ClusterConfig, read_cluster
from slurm.queue import Task, ask, live

CLUSTER = "slurm/cluster.env"


@dataclass(frozen=True, kw_only=True)
class SubmitConfig:
    """What is asked of ``slurm.submit``."""

    submit: bool = False
    """False prints the commands and submits nothing."""
    cells_per_task: int = 1
    """Cells that train side by side in one array task, on the same GPU: for small models."""
    max_running: int | None = None
    """Array tasks that may run at once; null for no limit."""
    cluster: str = CLUSTER
    """File of cluster settings; slurm/cluster.env.example shows what it holds."""

    def __post_init__(self) -> None:
        if self.cells_per_task < 1:
            raise ValueError(f"cells_per_task={self.cells_per_task} must be at least 1")
        if self.max_running is not None and self.max_running < 1:
            raise ValueError(f"max_running={self.max_running} must be at least 1, or null for no limit")


@dataclass
class Planned:
    """The cells that the words of a study stand for."""

    cells: list[Cell]
    refused: list[str]
    study: Path
    """``runs/STUDY``, absolute."""


def split(words: Sequence[str]) -> tuple[SubmitConfig, list[str]]:
    """The words of this command as a config, and the others. Raises ConfigError."""
    own = {field.name for field in dataclasses.fields(SubmitConfig)}
    mine = [word for word in words if word.partition("=")[0] in own]
    values = OmegaConf.to_container(OmegaConf.from_dotlist(mine))
    return typed(SubmitConfig, values, ""), [word for word in words if word not in mine]  # type: ignore[arg-type]


def plan_cells(words: Sequence[str]) -> Planned:
    """Composes every cell of a study, in this process; builds nothing and opens no data."""
    planned = Planned(cells=[], refused=[], study=Path())

    def collect(cfg: DictConfig) -> None:
        from experiments.run.settings import read_settings  # imports torch, which --help need not wait for

        chosen = list(HydraConfig.get().overrides.task)
        try:
            settings = read_settings(read_sections(cfg))
        except RunError as error:
            planned.refused.append(f"{' '.join(chosen)}: {error}")
            return
        planned.study = (settings.runs / settings.study).absolute()
        planned.cells.append(
            Cell(
                key=settings.key,
                name=settings.cell,
                seed=settings.seed,
                folder=str(settings.folder.absolute()),
                words=[*_search_path(), "hydra.mode=RUN", *chosen],
            )
        )

    sys.argv = [sys.argv[0], *words, "hydra/launcher=basic"]
    start(collect)
    return planned


def _search_path() -> list[str]:
    """``--config-dir`` as it was given, for the commands of the cells."""
    sources = HydraConfig.get().runtime.config_sources
    given = [source.path for source in sources if source.provider == "command-line"]
    return [word for path in given for word in ("--config-dir", path)]


def missing(cells: Sequence[Cell], queued: Mapping[str, Task]) -> list[Cell]:
    """Cells that are neither done nor in the queue."""
    return [cell for cell in cells if cell.status not in FINAL and cell.key not in queued]


def in_queue(study: Path) -> dict[str, Task]:
    """The task that waits to train a cell, or does, by run key. Raises RunError."""
    found = submissions(study)
    tasks = live([each.name for each in found])
    return {
        cell.key: tasks[each.name, cell.task]
        for each in found
        for cell in each.cells
        if cell.task is not None and (each.name, cell.task) in tasks
    }


def assign(cells: Sequence[Cell], chosen: Sequence[Cell], cells_per_task: int) -> list[Cell]:
    """All cells, the chosen ones with the index of their array task."""
    tasks = {cell.key: i // cells_per_task for i, cell in enumerate(chosen)}
    return [dataclasses.replace(cell, task=tasks.get(cell.key)) for cell in cells]


def commands(
    config: SubmitConfig, cluster: ClusterConfig, folder: Path, tasks: int, words: Sequence[str]
) -> dict[str, list[str]]:
    """The sbatch commands in their order, by the name of the job; ``$NAME`` stands for its job id."""
    study, base = folder.parents[1], ["sbatch", "--parsable", *cluster.place()]
    limit = f"%{config.max_running}" if config.max_running else ""
    name = job_name(folder)
    return {
        "prepare": [
            *base, f"--job-name={name}-prepare", f"--output={folder}/prepare.out",
            "slurm/module.sbatch", "experiments.plan", *words,
        ],
        "cells": [
            *base, f"--job-name={name}", f"--output={folder}/%a.out", "--dependency=afterany:$prepare",
            f"--array=0-{tasks - 1}{limit}", *cluster.resources(), "slurm/study.sbatch", str(folder),
        ],
        "analysis": [
            *base, f"--job-name={name}-analysis", f"--output={folder}/analysis.out",
            "--dependency=afterany:$cells", "slurm/module.sbatch", "analysis.compare", f"study={study.name}",
            f"runs={study.parent}",
        ],
    }  # fmt: skip


def send(jobs: Mapping[str, list[str]]) -> dict[str, str]:
    """Submits the jobs one after the other; their ids by name. Raises RunError."""
    ids: dict[str, str] = {}
    for name, command in jobs.items():
        words = list(command)
        for earlier, number in ids.items():
            words = [word.replace(f"${earlier}", number) for word in words]
        ids[name] = ask(*words).strip().partition(";")[0]  # ID, or ID;CLUSTER
        print(f"{name}: job {ids[name]}: {shlex.join(words)}")
    return ids


def submit(words: Sequence[str]) -> int:
    """Plans, prints and submits. The exit code. Raises RunError."""
    config, others = split(words)
    if not Path("slurm/study.sbatch").exists():
        raise ConfigError(f"{Path.cwd()} is not the root of the checkout: run slurm.submit from there")
    cluster = ClusterConfig()
    if Path(config.cluster).exists() or config.cluster != CLUSTER:
        cluster = read_cluster(Path(config.cluster))
        os.environ["ARCHBENCH_CLUSTER"] = config.cluster  # which sbatch hands to the jobs
    else:
        print(f"There is no {CLUSTER}: every choice is left to the cluster.")
    if config.cells_per_task > 1 and cluster.processes > 1:
        raise ConfigError(
            f"cells_per_task={config.cells_per_task}: a cell has {cluster.processes} processes "
            "(CLUSTER_NODES, CLUSTER_TASKS_PER_NODE), and only cells of one process can share a task"
        )
    planned = plan_cells(others)
    for refused in planned.refused:
        sys.stderr.write(f"error: {refused}\n")
    failure = ConfigError.exit_code if planned.refused else 0
    if not planned.cells:
        return failure
    queued = in_queue(planned.study)
    chosen = missing(planned.cells, queued)
    waiting = sum(cell.status not in FINAL for cell in planned.cells) - len(chosen)
    ended = len(planned.cells) - len(chosen) - waiting
    print(
        f"Study {planned.study.name}: {len(planned.cells)} cells, {ended} ended, {waiting} in the queue, "
        f"{len(chosen)} to submit."
    )
    if not chosen:
        return failure
    folder = new_folder(planned.study)
    cells = assign(planned.cells, chosen, config.cells_per_task)
    tasks = 1 + max(cell.task for cell in cells if cell.task is not None)
    jobs = commands(config, cluster, folder, tasks, others)
    if config.submit:
        write_submission(folder, cells)
        send(jobs)
        print(f"Logs in {folder}. To watch: {watch(planned.study)}")
        return failure
    prefix = f"ARCHBENCH_CLUSTER={shlex.quote(config.cluster)} " if "ARCHBENCH_CLUSTER" in os.environ else ""
    for name, command in jobs.items():
        quoted = " ".join(word if "=afterany:$" in word else shlex.quote(word) for word in command)
        print(f"{name}=$({prefix}{quoted})")
    print("Nothing was submitted; submit=true does it.")
    return failure


def watch(study: Path) -> str:
    """The command that shows what becomes of a submission."""
    runs = study.parent.relative_to(Path.cwd()) if study.is_relative_to(Path.cwd()) else study.parent
    return shlex.join(["python", "-m", "slurm.status", f"study={study.name}", f"runs={runs}"])


def main() -> Any:
    words = sys.argv[1:]
    if any(word in ("--help", "-h") for word in words):
        print(__doc__, end="")
        return 0
    try:
        return submit(words)
    except RunError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
