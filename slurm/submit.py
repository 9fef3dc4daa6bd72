"""Submits the missing runs of a study to SLURM: data preparation, an array job of the runs, and the analysis.

    archbench slurm submit study=compare                                  what would be submitted
    archbench slurm submit study=compare submit=true runs_per_task=4      submits it
    archbench slurm submit -m backbone=decoder,mamba seed=0,1,2 study.name=mine submit=true

It also accepts the arguments of archbench train. Runs that have ended or are already in the
queue are left out, so the same command submits only the missing runs. Call it from the root of the checkout.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from archbench.experiments.config.cells import Cell
from archbench.experiments.config.hydra_app import for_cells
from archbench.experiments.config.options import failed, shows_help, split_words
from archbench.experiments.config.sections import read_sections
from archbench.experiments.config.study import study_command
from archbench.experiments.run.settings import read_settings
from archbench.experiments.run.skipped_cells import RequestedCell, stored_status
from archbench.experiments.runtime.console import plural
from archbench.experiments.runtime.errors import ConfigError, RunError
from archbench.experiments.runtime.run_status import FINAL, RunStatus
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.streams import guard_streams
from archbench.slurm.allocation import TimeLimits, allocation
from archbench.slurm.cluster import ClusterConfig, chosen_cluster
from archbench.slurm.jobs import SubmitOptions, by_allocation, commands, dry_run, submit_jobs
from archbench.slurm.queue import Task, queued_tasks
from archbench.slurm.submission import StudyRun, new_folder, submissions, write_submission


@dataclass(frozen=True, kw_only=True)
class SubmitConfig(SubmitOptions):
    """Packing of runs into jobs."""

    runs_per_task: int = 1
    """Runs that train concurrently in one array task, on the same GPU: for small models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.runs_per_task < 1:
            raise ValueError(f"runs_per_task={self.runs_per_task} must be at least 1")


@dataclass
class Plan:
    """The runs of a study."""

    runs: list[StudyRun]
    refused: list[str]
    """Mistakes in the remaining configurations."""
    refusals: list[tuple[RequestedCell, RunError]] = field(default_factory=list)
    """Their run configurations, which are recorded as rejected when the remaining ones are submitted."""
    study: Path = Path()
    """``runs/STUDY``, absolute."""
    stored: int = 0
    """Runs that a frame of results holds (``study.stored``): they count as done."""


def split(arguments: Sequence[str]) -> tuple[SubmitConfig, list[str]]:
    """Return the options of this command, and the arguments of experiments.train. Raises ConfigError."""
    if redact(list(arguments)) != list(arguments):
        raise ConfigError(
            "an argument looks like a secret. It would be in runs.json and in the command lines of the "
            "jobs, which other users can read: export it as a variable of the environment instead"
        )
    return split_words(SubmitConfig, arguments)


def plan_runs(
    arguments: Sequence[str], cluster: ClusterConfig | None = None, *, packed: bool = False
) -> Plan:
    """Compose every run of a study, in this process.

    Builds no model. Opens data only to price runs whose device states its peak, for their time limit.

    Args:
        arguments: of experiments.train.
        cluster: the cluster's file; None for a cluster's defaults.
        packed: True if multiple runs share a task: its time limit is then that of the cluster's file.

    Raises:
        ConfigError: the cluster's time limit is invalid.
    """
    plan, cluster = Plan(runs=[], refused=[]), cluster or ClusterConfig()
    limits = TimeLimits(cluster.time)

    def collect(cell: Cell) -> None:
        if cell.mistake:
            plan.refused.append(f"{' '.join(cell.words)}: {cell.mistake}")
            uncomposed = RequestedCell.uncomposed(cell.composed, cell.words)
            plan.refusals.append((uncomposed, ConfigError(cell.mistake)))
            return
        cfg = cell.select()
        try:
            settings = read_settings(read_sections(cfg))
        except RunError as error:
            plan.refused.append(f"{' '.join(cell.words)}: {error}")
            plan.refusals.append((RequestedCell.composed(cfg), error))
            return
        plan.study = (settings.runs / settings.study.name).absolute()
        if stored_status(settings) is not None:
            plan.stored += 1
            return
        run = StudyRun(
            key=settings.key,
            name=settings.cell,
            seed=settings.seed,
            folder=str(settings.folder.absolute()),
            # As typed: the value of ${oc.env:NAME} may be a secret, and is read by the job.
            words=[*_search_path(), "hydra.mode=RUN", *cell.words],
            tokens=settings.budget.tokens,
            peak_flops=settings.device.peak_flops,
            allocation=allocation(settings, cluster),
        )
        if not packed and run.status not in FINAL:
            time = limits.limit(settings, run.allocation.processes)
            run = dataclasses.replace(run, allocation=dataclasses.replace(run.allocation, time=time))
        plan.runs.append(run)

    def collect_all(found: list[Cell]) -> None:
        for cell in found:
            collect(cell)

    for_cells(collect_all, arguments)
    return plan


def _search_path() -> list[str]:
    """Return ``--config-dir`` as it was given, for the commands of the runs."""
    sources = HydraConfig.get().runtime.config_sources
    given = [source.path for source in sources if source.provider == "command-line"]
    return [argument for path in given for argument in ("--config-dir", path)]


def missing(runs: Sequence[StudyRun], queued: Mapping[str, Task]) -> list[StudyRun]:
    """Return the runs that have neither ended nor are in the queue."""
    return [run for run in runs if run.status not in FINAL and run.key not in queued]


def in_queue(study: Path) -> dict[str, Task]:
    """Return the waiting or running array tasks of a study, by run key. Raises RunError."""
    existing = submissions(study)
    tasks = queued_tasks([submission.name for submission in existing])
    return {
        run.key: tasks[submission.name, run.task]
        for submission in existing
        for run in submission.runs
        if run.task is not None and (submission.name, run.task) in tasks
    }


def assign(runs: Sequence[StudyRun], chosen: Sequence[StudyRun], runs_per_task: int) -> list[StudyRun]:
    """Return all runs; the chosen ones get their array task. Equal allocations are neighbours."""
    tasks: dict[str, int] = {}
    start = 0
    for _, group in by_allocation(chosen):
        tasks |= {run.key: start + i // runs_per_task for i, run in enumerate(group)}
        start += -(-len(group) // runs_per_task)
    return [dataclasses.replace(run, task=tasks.get(run.key)) for run in runs]


def submit(arguments: Sequence[str]) -> int:
    """Plan, print and submit the jobs; return the exit code. Raises RunError."""
    config, others = split(arguments)
    if not Path("slurm/study.sbatch").exists():
        raise ConfigError(
            f"{Path.cwd()} is not the root of the checkout: run archbench slurm submit from there"
        )
    cluster = chosen_cluster(config.cluster)
    plan = plan_runs(others, cluster, packed=config.runs_per_task > 1)
    if config.runs_per_task > 1:
        _check_packing(config, plan.runs)
    for refused in plan.refused:
        sys.stderr.write(f"error: {refused}\n")
    failure = ConfigError.exit_code if plan.refusals else 0
    if config.submit:
        for cell, error in plan.refusals:
            cell.refuse(error)
    if plan.stored:
        verb = "is a row" if plan.stored == 1 else "are rows"
        print(f"{plural(plan.stored, 'run')} {verb} of study.stored, and done.")
    if not plan.runs:
        return failure
    queued = in_queue(plan.study)
    chosen = missing(plan.runs, queued)
    waiting = sum(run.status not in FINAL for run in plan.runs) - len(chosen)
    ended = len(plan.runs) - len(chosen) - waiting
    print(
        f"Study {plan.study.name}: {plural(len(plan.runs), 'run')}, {ended} ended, "
        f"{waiting} in the queue, {len(chosen)} to submit."
    )
    for run in chosen:
        if run.status == RunStatus.REFUSED:
            print(f"{run.key} was rejected, and will be again unless this was fixed: {run.message}")
    if not chosen:
        return failure
    runs = assign(plan.runs, chosen, config.runs_per_task)
    if config.submit:
        folder = new_folder(plan.study)
        write_submission(folder, runs)
        jobs = commands(cluster, folder, runs, others, config.max_running)
        print(*submit_jobs(jobs), sep="\n", flush=True)
        print(f"Logs in {folder}. To watch: {study_command('slurm status', plan.study)}")
        return failure
    jobs = commands(cluster, plan.study / "slurm" / "ID", runs, others, config.max_running)
    print(*dry_run(jobs, "slurm submit", arguments), sep="\n")
    return failure


def _check_packing(config: SubmitConfig, runs: Sequence[StudyRun]) -> None:
    """Check that runs of multiple processes do not share a task. Raises ConfigError."""
    for run in runs:
        if run.allocation.processes > 1:
            raise ConfigError(
                f"runs_per_task={config.runs_per_task}: {run.name} has {run.allocation.processes} processes "
                "(parallel.nodes, parallel.gpus_per_node, or CLUSTER_NODES, CLUSTER_TASKS_PER_NODE), and "
                "only runs of one process can share a task"
            )


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    guard_streams()
    if shows_help(SubmitConfig, __doc__ or "", arguments):
        return 0
    try:
        return submit(arguments)
    except RunError as error:
        return failed(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
