"""Evaluates a trained model on tasks of EleutherAI's lm-evaluation-harness (extra ``eval``).

    archbench evaluate downstream run=FOLDER include=docs/downstream tasks=[words_bits]
    archbench evaluate downstream run=FOLDER include=mine tasks=[quiz] shots=2
    archbench evaluate downstream run=FOLDER tasks=[lambada_openai] limit=100
    archbench evaluate downstream run=FOLDER task=sentences shots=4

It prints a table, and appends a line for each row to ``downstream.jsonl`` in the run's folder. Tasks
are YAML files of the harness: those in the folder ``include``, or those in the package, which download their
data; ``task`` is one of archbench, as in ``experiments.train``.
"""

from __future__ import annotations

import sys

from archbench.experiments.config.hydra_app import start

if __name__ == "__main__":  # before the imports below: see archbench.experiments.config.hydra_app
    start("archbench.experiments.evaluation.downstream.__main__.downstream", "downstream")
    sys.exit()

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import DictConfig

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.config.sections import plain_tree
from archbench.experiments.config.structured import component, typed
from archbench.experiments.data.counter_rng import permute
from archbench.experiments.evaluation.downstream.answer_likelihood import AnswerScorer
from archbench.experiments.evaluation.downstream.lm_eval_model import HarnessModel
from archbench.experiments.evaluation.downstream.local_tasks import local_task
from archbench.experiments.evaluation.downstream.results import (
    Row,
    append,
    check_shots,
    print_table,
    task_rows,
)
from archbench.experiments.run.load_model import (
    LoadedModel,
    UnmaskingOverrides,
    load_model,
    override_unmasking,
)
from archbench.experiments.run.plan import build_task
from archbench.experiments.runtime.console import Console
from archbench.experiments.runtime.device import configure_process, torch_device
from archbench.experiments.runtime.errors import ConfigError, DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.task import Task

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict, TaskManager


@dataclass(frozen=True, kw_only=True)
class DownstreamConfig:
    """Settings of ``experiments.evaluation.downstream``."""

    run: str
    """Folder of a run, of one of its checkpoints (``RUN/checkpoints/step-N``), or of Hugging Face."""
    tasks: list[str] = field(default_factory=list)
    """Names of tasks, groups or tags of the harness."""
    include: str | None = None
    """Folder of task files, searched before those in the harness."""
    shots: int | None = None
    """Solved examples before each question, of the split that the task names for it; null for the task's
    number. Tasks that fix it to 0 and tasks that score complete texts ignore it."""
    limit: int | None = None
    """Examples of each task at most, sampled with a fixed seed; null for all."""
    samples: int = 32
    """Masked versions of each answer from which a bound is estimated; other likelihoods are deterministic."""
    batch_size: int = 32
    """Requests at once; changes memory, not results."""
    seed: int = 1234
    """Seed of the solved examples (the harness's default is 1234), of masks and of samples."""
    filling: UnmaskingOverrides = field(default_factory=UnmaskingOverrides)
    """Changes of unmasking where a text is generated, for models that unmask."""
    output: str | None = None
    """File that rows are appended to; null for downstream.jsonl in the run's folder."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    """Device and precision."""

    def __post_init__(self) -> None:
        if self.shots is not None and self.shots < 0:
            raise ValueError(f"shots={self.shots} must be 0 or more, or null")
        if self.limit is not None and self.limit < 2:
            raise ValueError(f"limit={self.limit} must be 2 or more, or null for all examples")
        if self.samples < 2 or self.batch_size < 1:
            raise ValueError(
                f"samples={self.samples} must be 2 or more and batch_size={self.batch_size} positive"
            )


def downstream(cfg: DictConfig) -> None:
    tree = plain_tree(cfg)
    section = tree.pop("task", None)
    config = typed(DownstreamConfig, tree, "")
    if not config.tasks and section is None:
        raise ConfigError(
            "tasks=[] names no task: give some, such as tasks=[words_choice], or task=sentences"
        )
    check_installed()
    configure_process(threads=config.device.threads, kernels=config.device.kernels)
    saved = load_model(Path(config.run), torch_device(config.device.name))
    override_unmasking(saved, config.filling)
    local_tasks = []
    if section is not None:
        task_class, task_config = component({"task": section}, "task", Task)  # type: ignore[type-abstract]
        name = task_class.__name__.lower()
        local_tasks.append(local_task(name, build_task(task_class, task_config, name), config.seed))
    rows = evaluate(saved, config, local_tasks)
    print(saved.description)
    print_table(rows)
    append(rows, Path(config.output or saved.folder / "downstream.jsonl"))


def check_installed() -> None:
    """Raises ConfigError where the harness is missing."""
    try:
        import lm_eval  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "lm_eval":
            raise
        raise ConfigError(
            "the lm-evaluation-harness is not installed: pip install 'archbench[eval]'"
        ) from None


def evaluate(
    saved: LoadedModel, config: DownstreamConfig, local_tasks: Sequence[Mapping[str, object]] = ()
) -> list[Row]:
    """Return a row for each metric of each task, in order; ``local_tasks`` are those of archbench."""
    from lm_eval import evaluator  # imports in seconds, which would delay every command

    scorer = AnswerScorer(
        saved, samples=config.samples, seed=config.seed, batch_size=config.batch_size, device=config.device
    )
    tasks = load_tasks(config, local_tasks)
    check_kinds(saved, tasks)
    model = HarnessModel(
        saved,
        scorer,
        seed=config.seed,
        batch_size=config.batch_size,
        device=config.device,
        progress=Console("downstream").progress,
    )
    # The harness would bootstrap standard errors; archbench uses the jackknife everywhere.
    results = evaluator.evaluate(model, tasks, samples=limited(tasks, config.limit), bootstrap_iters=0)
    return task_rows(results, tasks["tasks"], model.notes, saved, scorer, config.seed)


def limited(tasks: TaskDict, limit: int | None) -> dict[str, list[int]] | None:
    """Return the indices of the examples of each task, ``limit`` at most; None for all examples.

    They are a sample, the same for every model and seed. The harness would take the first ones of files that
    are often sorted.
    """
    if limit is None:
        return None
    counts = {name: len(task.eval_docs) for name, task in tasks["tasks"].items()}
    return {
        name: sorted(permute(stream(name, "limit"), np.arange(min(limit, count)), count).tolist())
        for name, count in counts.items()
    }


def load_tasks(config: DownstreamConfig, local_tasks: Sequence[Mapping[str, object]] = ()) -> TaskDict:
    """The tasks, with their data, number of shots and seed.

    Raises:
        ConfigError: a name that no task has.
        DataError: a task that cannot be built, or its data cannot be loaded.
    """
    with quiet():
        manager = _manager(config)
        try:
            tasks = manager.load([*config.tasks, *map(dict, local_tasks)])
        except Exception as error:  # a task's file may raise anything
            reason = " ".join(str(error).split()) or "no reason given"
            raise DataError(f"tasks={_listed(config.tasks)}: {type(error).__name__}: {reason}") from error
    for name, task in tasks["tasks"].items():
        configured = task.get_config("num_fewshot")
        if task.OUTPUT_TYPE == "loglikelihood_rolling":  # complete texts have no question
            task.set_config(key="num_fewshot", value=0)
        elif configured is None or (config.shots is not None and configured != 0):
            task.set_config(key="num_fewshot", value=config.shots or 0)
        task.set_fewshot_seed(seed=config.seed)
        check_shots(name, task)
    return tasks


def _manager(config: DownstreamConfig) -> TaskManager:
    """Return a manager for the configured tasks; those of the harness are indexed only if needed."""
    from lm_eval.tasks import TaskManager

    if not config.tasks:
        return TaskManager(include_defaults=False)
    if config.include is not None:
        if not Path(config.include).is_dir():
            raise ConfigError(f"include={config.include}: there is no such folder")
        manager = TaskManager(include_path=config.include, include_defaults=False)
        if set(config.tasks) <= set(manager.all_tasks):
            return manager
    manager = TaskManager(include_path=config.include)
    for name in config.tasks:
        if name not in manager.all_tasks:
            close = nearest(name, manager.all_tasks).split("; options")[0]  # there are thousands
            raise ConfigError(f"tasks={_listed(config.tasks)}: there is no task '{name}'{close}")
    return manager


def check_kinds(saved: LoadedModel, tasks: TaskDict) -> None:
    """Raise ConfigError for tasks that the model cannot answer."""
    for name, task in tasks["tasks"].items():
        if task.OUTPUT_TYPE == "loglikelihood_rolling" and saved.model.capabilities.encoder_decoder:
            raise ConfigError(
                f"tasks: {name} needs the likelihood of complete texts, and an encoder-decoder only gives "
                "that of one text after another: leave it out"
            )
        if getattr(task, "UNSAFE_CODE", False) or getattr(task, "MULTIMODAL", False):
            raise ConfigError(
                f"tasks: {name} runs code that models write, or shows them images: leave it out"
            )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars of datasets and warnings of tasks about their defaults."""
    import datasets  # slow to import

    logger, level = logging.getLogger("lm_eval"), logging.getLogger("lm_eval").level
    datasets.disable_progress_bars()
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        datasets.enable_progress_bars()


def _listed(names: Sequence[str]) -> str:
    return f"[{','.join(names)}]"
