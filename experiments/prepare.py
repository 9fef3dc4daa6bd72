"""Prepare the data of a run, or of every run of a study, before any of them is trained.

    archbench prepare task=fineweb_edu processes=16
    archbench prepare study=recipe/1_3b

A dataset of the hub, or a local folder in its layout, is tokenised by multiple processes. If a process is
killed, its current part is lost, and the same command resumes. The token files are byte-identical for
any number of processes. Other data is prepared as the first run would prepare it.

On a cluster, ``archbench slurm prepare`` submits this as jobs. The arguments are those of ``archbench train``
and the keys below.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from archbench.experiments.config.hydra_app import for_each_cell
from archbench.experiments.config.options import take_options
from archbench.experiments.config.sections import read_sections
from archbench.experiments.data.preparation.merge import merge
from archbench.experiments.data.preparation.part import storage_error
from archbench.experiments.data.preparation.plan import begin
from archbench.experiments.data.preparation.processes import make_parts
from archbench.experiments.data.token_file import planned_folder
from archbench.experiments.run.plan import build_task
from archbench.experiments.run.settings import read_settings
from archbench.experiments.runtime.console import clock
from archbench.experiments.runtime.errors import nearest
from archbench.experiments.runtime.machine import job_number, usable_cores
from archbench.experiments.runtime.preemption import stops_at_once
from archbench.experiments.tasks.text.text import TextConfig

if TYPE_CHECKING:
    from archbench.experiments.run.settings import Settings
    from archbench.experiments.tasks.text.text import TextConfig

STAGES = ("all", "plan", "parts")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """The part of the preparation that this process does."""

    processes: int | None = None
    """Number of processes that tokenise; by default one for each CPU of the job or of the machine."""
    stage: str = "all"
    """``plan`` only inspects the dataset, and trains the tokenizer if needed; ``parts`` only tokenises;
    ``all`` does both and merges the parts."""
    share: str | None = None
    """With stage=parts: ``K/N``, share K of N, from 0; ``slurm`` for that of this array task."""

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise ValueError(f"processes={self.processes} must be at least 1")
        if self.stage not in STAGES:
            raise ValueError(f"stage={self.stage} is unknown{nearest(self.stage, STAGES)}")
        if self.share is not None and self.stage != "parts":
            raise ValueError(f"share={self.share} needs stage=parts: add it, or leave share out")
        self.index_of()

    def index_of(self) -> tuple[int, int]:
        """Return the index of the share, and the number of shares."""
        if self.share is None:
            return 0, 1
        if self.share == "slurm":
            start = job_number("SLURM_ARRAY_TASK_MIN")
            index = job_number("SLURM_ARRAY_TASK_ID") - start
            return index, job_number("SLURM_ARRAY_TASK_COUNT", 1)
        match = re.fullmatch(r"(\d+)/(\d+)", self.share)
        if match is None or not int(match[1]) < int(match[2]):
            raise ValueError(f"share={self.share} must be like 0/4 to 3/4, or slurm")
        return int(match[1]), int(match[2])

    @property
    def num_processes(self) -> int:
        """Return the number of processes, by default one for each core that this process may use."""
        return self.processes or usable_cores()


class _Prepared:
    """Prepares the data of run configurations in sequence, each dataset once."""

    def __init__(self, config: PrepareConfig) -> None:
        self.config = config
        self._seen: set[str] = set()

    def prepare(self, cfg: DictConfig) -> None:
        """Prepare the data of a run configuration. Raises RunError."""
        sections = read_sections(cfg)

        settings = read_settings(sections, untuned=True)
        for task in (settings.task, *settings.extra_evaluations.values()):
            if repr(task) not in self._seen:
                self._seen.add(repr(task))
                with stops_at_once():
                    self._prepare(settings, task)

    def _prepare(self, settings: Settings, task: Any) -> None:
        if isinstance(task, TextConfig) and task.source == "hub":
            try:
                self._in_parts(settings.names.task, task)
            except OSError as error:
                raise storage_error(Path(task.cache_dir), error) from error
        if self.config.stage == "all":
            built = build_task(settings.task_class, task, settings.names.task)
            sizes = ", ".join(
                f"{split} {built.num_examples(split)}" for split in ("train", "validation", "test")
            )
            print(f"{settings.names.task}: ready; examples: {sizes.replace('None', 'generated')}", flush=True)

    def _in_parts(self, name: str, task: TextConfig) -> None:
        source = (task, task.tokenizer, task.num_sentinels, task.cache_dir)
        destination, _ = planned_folder(*source)
        if destination.is_dir():
            print(f"{name}: is prepared already, in {destination}", flush=True)
            return
        preparation = begin(*source)
        total = sum(1 for _ in preparation.parts())
        print(f"{name}: {total} parts in {preparation.folder}", flush=True)
        if self.config.stage == "plan":
            return
        made = make_parts(preparation, self.config.num_processes, self.config.index_of())
        print(f"{name}: {made}, by {self.config.num_processes} processes", flush=True)
        if self.config.stage == "all":
            merge(preparation)
            print(f"{name}: prepared in {clock(made.seconds)} in {destination}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Prepare the data of the runs of the overrides, one dataset after another."""
    config, words = take_options(PrepareConfig, arguments, __doc__)
    for_each_cell(_Prepared(config).prepare, words)


if __name__ == "__main__":
    main(sys.argv[1:])
