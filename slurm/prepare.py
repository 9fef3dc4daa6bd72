"""Submits the preparation of a large dataset to SLURM: an array of tasks that tokenise, each its share.

    archbench slurm prepare task=fineweb_edu tasks=8                 what would be submitted
    archbench slurm prepare task=fineweb_edu tasks=8 submit=true     submits it

Three jobs: ``plan`` looks at the dataset and learns the tokenizer where one is learned; ``parts`` is the
array; ``merge`` makes the parts that are still missing and puts all together. A task that is preempted or
killed loses the parts it was at. The same command again continues. It also accepts the arguments of
archbench prepare. Call it from the root of the checkout.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archbench.experiments.config.options import failed, plain_value, shows_help, split_words
from archbench.experiments.prepare import PrepareConfig
from archbench.experiments.runtime.errors import ConfigError, RunError
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.streams import guard_streams
from archbench.slurm.cluster import ClusterConfig, chosen_cluster
from archbench.slurm.jobs import SubmitOptions, dry_run, log_file, submit_jobs


@dataclass(frozen=True, kw_only=True)
class SubmitPreparationConfig(SubmitOptions):
    """Division of the preparation into jobs."""

    tasks: int = 4
    """Tasks of the array; each tokenises with as many processes as CLUSTER_CPUS_PER_TASK."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tasks < 1:
            raise ValueError(f"tasks={self.tasks} must be at least 1")


def split(arguments: Sequence[str]) -> tuple[SubmitPreparationConfig, list[str]]:
    """Return the options of this command, and the arguments for experiments.prepare. Raises ConfigError."""
    config, others = split_words(SubmitPreparationConfig, arguments)
    if redact(others) != others:
        raise ConfigError(
            "an argument looks like a secret, and would be in the command lines of the jobs, which other "
            "users can read: export it as a variable of the environment instead"
        )
    for argument in others:
        if argument.partition("=")[0] in ("stage", "share"):
            raise ConfigError(f"{argument}: archbench slurm prepare gives each job its own; leave it out")
    split_words(PrepareConfig, others)
    return config, others


def commands(
    cluster: ClusterConfig, config: SubmitPreparationConfig, arguments: Sequence[str], logs: Path
) -> dict[str, list[str]]:
    """Return the sbatch commands in order, by job; ``$NAME`` is replaced by the id of an earlier job."""
    limit = f"%{config.max_running}" if config.max_running else ""

    def job(name: str, output: str, *options: str, stage: Sequence[str]) -> list[str]:
        return [
            "sbatch", "--parsable", *cluster.common_options(), f"--job-name=archbench-prepare-{name}",
            log_file(logs, output), "--open-mode=append", *options, "slurm/module.sbatch",
            "archbench.experiments.prepare", *arguments, *stage,
        ]  # fmt: skip

    return {
        "plan": job("plan", "plan.out", stage=["stage=plan"]),
        "parts": job(
            "parts",
            "%a.out",
            f"--array=0-{config.tasks - 1}{limit}",
            "--dependency=afterany:$plan",
            stage=["stage=parts", "share=slurm"],
        ),
        "merge": job("merge", "merge.out", "--dependency=afterany:$parts", stage=[]),
    }


def submit(arguments: Sequence[str]) -> None:
    """Print or submit the jobs. Raises RunError."""
    config, others = split(arguments)
    if not Path("slurm/module.sbatch").exists():
        raise ConfigError(f"{Path.cwd()} is not the root of the checkout: run this command from there")
    cluster = chosen_cluster(config.cluster)
    runs = next((word.partition("=")[2] for word in others if word.startswith("runs=")), "runs")
    runs = plain_value("runs", runs)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S") if config.submit else "ID"
    logs = Path(runs).absolute() / "prepare" / stamp
    jobs = commands(cluster, config, others, logs)
    if config.submit:
        logs.mkdir(parents=True)
        print(*submit_jobs(jobs), f"Logs in {logs}.", sep="\n")
        return
    print(*dry_run(jobs, "slurm prepare", arguments), sep="\n")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    guard_streams()
    if shows_help(SubmitPreparationConfig, __doc__ or "", arguments):
        return 0
    try:
        submit(arguments)
    except RunError as error:
        return failed(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
