"""Submits the preparation of a large dataset to SLURM: an array of tasks that tokenise, each its share.

    archbench slurm prepare task=fineweb_edu tasks=8                 what would be submitted
    archbench slurm prepare task=fineweb_edu tasks=8 submit=true     submits it

Three jobs: ``plan`` looks at the dataset and learns the tokenizer where one is learned; ``parts`` is the
array; ``merge`` makes the parts that are still missing and puts all together. A task that is preempted or
killed loses the parts it was at. The same command again continues. Besides its own options (submit, tasks,
max_running, cluster) it takes the words of archbench prepare. Call it from the root of the checkout.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.config.command_line import plain_value
from experiments.config.structured import typed
from experiments.prepare import split_words
from experiments.runtime.errors import ConfigError, RunError
from experiments.runtime.secrets import redact
from slurm.cluster import CLUSTER, ClusterConfig, read_cluster
from slurm.jobs import dry_run, log_file, submit_jobs


@dataclass(frozen=True, kw_only=True)
class SubmitPreparationConfig:
    """Options of ``slurm.prepare``."""

    submit: bool = False
    """False prints the commands and submits nothing."""
    tasks: int = 4
    """Tasks of the array; each tokenises with as many processes as CLUSTER_CPUS_PER_TASK."""
    max_running: int | None = None
    """Tasks that may run at once; null for no limit."""
    cluster: str = CLUSTER
    """File of cluster settings; slurm/cluster.env.example shows what it holds."""

    def __post_init__(self) -> None:
        for name in ("tasks", "max_running"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")


def split(words: Sequence[str]) -> tuple[SubmitPreparationConfig, list[str]]:
    """Return the options of this command, and the words for experiments.prepare. Raises ConfigError."""
    own = {field.name for field in dataclasses.fields(SubmitPreparationConfig)}
    mine = [word for word in words if word.partition("=")[0] in own]
    others = [word for word in words if word not in mine]
    if redact(others) != others:
        raise ConfigError(
            "an argument looks like a secret, and would stand in the command lines of the jobs, which others "
            "can read: export it as a variable of the environment instead"
        )
    for word in others:
        if word.partition("=")[0] in ("stage", "share"):
            raise ConfigError(f"{word}: archbench slurm prepare gives each job its own; leave it out")
    split_words(others)
    values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(mine))
    return typed(SubmitPreparationConfig, values, ""), others


def commands(
    cluster: ClusterConfig, config: SubmitPreparationConfig, words: Sequence[str], logs: Path
) -> dict[str, list[str]]:
    """Return the sbatch commands in order, by job; ``$NAME`` stands for the id of an earlier job."""
    limit = f"%{config.max_running}" if config.max_running else ""

    def job(name: str, output: str, *options: str, stage: Sequence[str]) -> list[str]:
        return [
            "sbatch", "--parsable", *cluster.common_options(), f"--job-name=archbench-prepare-{name}",
            log_file(logs, output), "--open-mode=append", *options, "slurm/module.sbatch",
            "experiments.prepare", *words, *stage,
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


def submit(words: Sequence[str]) -> None:
    """Print or submit the jobs. Raises RunError."""
    config, others = split(words)
    if not Path("slurm/module.sbatch").exists():
        raise ConfigError(f"{Path.cwd()} is not the root of the checkout: run this command from there")
    cluster = ClusterConfig()
    if Path(config.cluster).exists() or config.cluster != CLUSTER:
        cluster = read_cluster(Path(config.cluster))
        os.environ["ARCHBENCH_CLUSTER"] = config.cluster  # which sbatch hands to the jobs
    runs = next((word.partition("=")[2] for word in others if word.startswith("runs=")), "runs")
    runs = plain_value("runs", runs)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S") if config.submit else "ID"
    logs = Path(runs).absolute() / "prepare" / stamp
    jobs = commands(cluster, config, others, logs)
    if config.submit:
        logs.mkdir(parents=True)
        print(*submit_jobs(jobs), f"Logs in {logs}.", sep="\n")
        return
    print(*dry_run(jobs, "slurm prepare", words), sep="\n")


def main() -> int:
    """Submit what the words ask for; return the exit code."""
    words = sys.argv[1:]
    if any(word in ("--help", "-h") for word in words):
        print(__doc__, end="")
        return 0
    try:
        submit(words)
    except RunError as error:
        sys.stderr.write(f"error: {redact(str(error))}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
