"""Batches made ahead are those that a task gives step by step, wherever a run begins."""

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from torch import Tensor

import archbench.experiments.config.schema  # noqa: F401  # registers the sections that the YAML files extend
from archbench.experiments.config import CONF
from archbench.experiments.config.structured import component
from archbench.experiments.tasks.task import Batch, Task
from archbench.experiments.training import trainer
from archbench.experiments.training.trainer import BLOCK_STEPS, BatchPrefetcher

GENERATED = (
    "recall",
    "copying",
    "fuzzy_recall",
    "listops_nano",
    "word_problem",
    "phone_book",
    "parity_check",
)
READ = ("pairs", "tags")


def make(name: str) -> Task:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        tree = hydra.compose("evaluate", overrides=[f"task={name}"]).task
    task_class, config = component({"task": OmegaConf.to_container(tree, resolve=True)}, "task", Task)  # type: ignore[type-abstract]
    return task_class(config)  # type: ignore[call-arg]


def same(one: Batch, other: Batch) -> bool:
    pairs = [(value, getattr(other, name)) for name, value in vars(one).items()]
    return all(
        a.shape == b.shape and bool((a == b).all()) if isinstance(a, Tensor) else a == b for a, b in pairs
    )


class Counting:
    """A task that counts how often it is asked."""

    def __init__(self, task: Task) -> None:
        self.task, self.asked = task, []
        self.sequence_length = task.sequence_length

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        self.asked.append((start, count))
        return self.task.batch(split, seed, start, count)


@pytest.mark.parametrize("name", [*GENERATED, *READ])
def test_blocks_hold_the_batches_of_every_step(name: str) -> None:
    task = make(name)
    ahead = BatchPrefetcher(task, 3, 4, 40)
    for step in (5, 6, 7, 20, 21, 22, 38, 39, 0):
        assert same(ahead.batch(step), task.batch("train", 3, 4 * step, 4)), step


def test_a_block_is_made_once_and_ends_with_the_run() -> None:
    task = Counting(make("recall"))
    ahead = BatchPrefetcher(task, 0, 2, BLOCK_STEPS + 3)  # type: ignore[arg-type]
    for step in range(BLOCK_STEPS + 3):
        ahead.batch(step)
    assert task.asked == [(0, 2 * BLOCK_STEPS), (2 * BLOCK_STEPS, 6)]


def test_large_batches_are_made_one_by_one() -> None:
    task = Counting(make("recall"))
    rows = 2**18 // task.sequence_length
    ahead = BatchPrefetcher(task, 0, rows, 10)  # type: ignore[arg-type]
    assert len(ahead.batch(0).tokens_BT) == rows
    assert task.asked == [(0, rows)]


@pytest.mark.parametrize("steps", [1, BLOCK_STEPS])
def test_parts_are_rows_of_the_whole(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that asks for its part of a large batch has nothing else made."""
    task = Counting(make("recall"))
    if steps == 1:
        monkeypatch.setattr(trainer, "BLOCK_TOKENS", 4 * task.sequence_length)
    parts = [BatchPrefetcher(task, 3, 4, 40, part=part, parts=2) for part in (0, 1)]  # type: ignore[arg-type]
    for step in (0, 1, 39):
        whole = task.task.batch("train", 3, 4 * step, 4)
        for part, ahead in enumerate(parts):
            assert same(ahead.batch(step), whole.rows(2 * part, 2 * part + 2))
    assert ((2, 2) in task.asked) == (steps == 1)
