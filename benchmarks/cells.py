"""Overhead of a sweep: the time of a small cell without its training steps and its test.

python benchmarks/cells.py --threads 1 --output benchmarks/results/cells.md

One process trains one cell after the other, as ``archbench train -m`` does, or two do
(``hydra/launcher=parallel``). The overhead of a cell is the time from the end of the previous cell to its
end, less its training steps and its test. It includes composing its configuration, planning, building, the
validation, checkpoints and records. Hydra composes a cell twice, the first time to validate it, and by
default does so for all cells before the first begins; here one process composes them one by one. With two
processes, the first composition is not in the values. The first cell of a process is also left out, because
it imports PyTorch. Its cost is given as the time from the command to the end of the first training step.

The page gives the time by the clock, and the processor time of the process, which other work on the
machine disturbs less (without child processes such as git).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FIXED = ("device=cpu", "budget.tokens=8192", "trainer.validation_examples=32", "trainer.test_examples=32")
"""Four steps of 32 sequences of 64 tokens, and an evaluation on 32 examples."""
SWEPT = "backbone=decoder,mamba"
TASKS = {
    "text": ("task=text", "task.sequence_length=64"),
    "recall": ("task=recall", "task.sequence_length=64"),
}


LAUNCHERS = {
    "basic": ("one process", "hydra.sweeper.max_batch_size=1"),
    "parallel": ("two processes", "hydra.launcher.n_jobs=2"),
}


def now() -> list[float]:
    """By the clock, and of the processor."""
    return [time.time(), time.process_time()]


def child() -> None:
    """``python benchmarks/cells.py --child FOLDER OVERRIDES``: a sweep that records times of events."""
    folder = Path(sys.argv[2])
    sys.argv = [sys.argv[0], *sys.argv[3:]]
    from archbench.experiments.config.hydra_app import start

    start(_Noting(str(folder)))


class _Noting:
    """Trains a cell and notes how long its steps and its test took. Other processes get copies of it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, cfg: Any) -> float:
        from archbench.experiments.train import train
        from archbench.experiments.training.evaluator import Evaluator
        from archbench.experiments.training.trainer import Trainer

        spent: dict[str, list[list[float]]] = {"_step": [], "evaluate": []}
        owners: dict[str, type[Any]] = {"_step": Trainer, "evaluate": Evaluator}
        originals = {name: getattr(owner, name) for name, owner in owners.items()}
        for name, function in originals.items():
            setattr(owners[name], name, _timed(function, spent[name]))
        try:
            loss = train(cfg)
        finally:
            for name, function in originals.items():
                setattr(owners[name], name, function)
        ended = {"process": os.getpid(), "ended": now(), **spent}
        with (Path(self.folder) / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(ended) + "\n")
        return loss


def _timed(function: Callable[..., Any], spent: list[list[float]]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        begin = now()
        result = function(*args, **kwargs)
        spent.append([begin[0], *(end - start for start, end in zip(begin, now(), strict=True))])
        return result

    return wrapped


def sweep(task: str, launcher: str, seeds: int, threads: int) -> list[str]:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        overrides = [
            *FIXED, *TASKS[task], SWEPT, f"seed=range({seeds})", f"device.threads={threads}",
            f"runs={folder / 'runs'}", f"hydra/launcher={launcher}", LAUNCHERS[launcher][1],
        ]  # fmt: skip
        begin = time.time()
        ended = subprocess.run(
            [sys.executable, __file__, "--child", str(folder), "-m", *overrides],
            capture_output=True,
            text=True,
        )
        if ended.returncode != 0:
            sys.exit(f"the sweep failed:\n{ended.stderr[-3000:]}")
        records = [
            [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")
        ]
    overheads = np.array([seconds for cells in records for seconds in overhead(cells)])
    first_step = min((cells[0]["_step"][0] for cells in records), key=lambda step: step[0])
    low, middle, high = np.percentile(overheads[:, 0], (25, 50, 75))
    return [
        f"{task}, {LAUNCHERS[launcher][0]}",
        f"{sum(map(len, records))}",
        f"{middle:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{np.median(overheads[:, 1]):.2f}",
        f"{first_step[0] + first_step[1] - begin:.1f}",
    ]


def overhead(cells: list[dict[str, Any]]) -> list[list[float]]:
    """Seconds of each cell but the first of a process, by the clock and of the processor."""
    overheads = []  # the last evaluation is the test; earlier ones count as overhead
    for previous, cell in itertools.pairwise(cells):
        training_and_test = np.array([step[1:] for step in cell["_step"]] + [cell["evaluate"][-1][1:]]).sum(0)
        overheads.append(list(np.array(cell["ended"]) - np.array(previous["ended"]) - training_and_test))
    return overheads


def main() -> None:
    from machine import Page, as_markdown, machine_line, settle

    args = parse()
    settle(args.threads)
    page = Page(args.output)
    page.say(f"{machine_line()}, load average {os.getloadavg()[0]:.1f}.")
    page.say(
        f"scale=nano, {SWEPT}, {args.seeds} seeds of each, one after the other: four training steps, one "
        "validation, one checkpoint, one test. Goals: 1 second of overhead, 6 to the end of the first step."
    )
    columns = ("sweep", "cells", "overhead, s", "quartiles", "processor, s", "first step after, s")
    lines = [sweep(task, launcher, args.seeds, args.threads) for task, launcher in args.sweeps]
    page.say(as_markdown(columns, lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=6, help="cells of each backbone")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--launchers", nargs="+", default=["basic", "parallel"], choices=["basic", "parallel"]
    )
    parser.add_argument("--tasks", nargs="+", default=sorted(TASKS), choices=sorted(TASKS))
    parser.add_argument("--output", type=Path, help="Markdown file to write the table to")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(f"--seeds {args.seeds}: at least 2, or there is no cell after the first")
    if args.output is not None and not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: there is no folder {args.output.parent}; make it first")
    args.sweeps = [(task, launcher) for task in args.tasks for launcher in args.launchers]
    return args


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child()
    else:
        main()
