"""Overhead of the harness over a bare training loop: its step, its records, its checkpoints.

python benchmarks/overhead.py --scales nano micro --threads 1 --output benchmarks/results/overhead.md

A decoder trains on text. The bare loop is minimal: the same model, batches cut
beforehand, cross entropy, clipping, the same fused AdamW and schedule, and the loss read at every step. The
harness prepares its batches and does all its work between two steps: it watches for hangs, signals and
non-finite losses, and counts. Logging is a row of metrics.jsonl, a line of the console and an
offline W&B run, at the default interval; a checkpoint is one at the default interval, written, synced and
read again.

The loops take turns in one process, step by step in an order that rotates; three steps come first and are
not counted. The page gives the processor time of the least of all steps, which other work on the
machine disturbs least (with the least step that logs counted once in a block), and by the clock the median
over the rounds of the difference within a round, with its quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import hydra
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from hydra.core.hydra_config import HydraConfig
from machine import Page, add_outputs, as_markdown, machine_line, read_arguments, settle
from omegaconf import OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.config.schema import TrainerConfig
from archbench.experiments.config.sections import read_sections
from archbench.experiments.objectives.objective import View
from archbench.experiments.run.plan import Plan, plan
from archbench.experiments.run.result_parts import planned_result
from archbench.experiments.run.run import build, build_model
from archbench.experiments.run.settings import Settings, read_settings
from archbench.experiments.runtime.console import Console
from archbench.experiments.runtime.preemption import Interruptions
from archbench.experiments.runtime.run_lock import RunLock
from archbench.experiments.runtime.watchdog import Watchdog
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.tracker import RunIdentity, derived, open_tracker
from archbench.experiments.training.optimizer_step import set_learning_rate
from archbench.experiments.training.parallel.device_mesh import ParallelDims
from archbench.experiments.training.trainer import Trainer

NEVER = 10**9
WARM = 3
"""Steps that come first and are not counted."""
BLOCK = TrainerConfig().log_every
"""Steps of a turn: one row is logged in each."""
KEPT = 32
"""Batches that the bare loop repeats."""
WORDS = ("backbone=decoder", "task=text", f"budget.tokens={10**12}", f"trainer.evaluate_every={NEVER}")


COMPARED = (
    ("bare loop : itself", "again", "bare"),
    ("harness : bare loop", "silent", "bare"),
    ("with records : without", "logged", "silent"),
)
"""Name of each comparison, and its two loops; the first one is the difference of two equal loops."""
Times = npt.NDArray[np.float64]
"""Seconds, the last dimension being: by the clock, and of the processor. A checkpoint's are by the clock."""


class Loop(Protocol):
    """Something that trains step by step."""

    def step(self) -> None: ...


class Bare:
    """A training loop without a harness."""

    def __init__(self, settings: Settings, run_plan: Plan) -> None:
        self.model = build_model(settings, run_plan)
        self.optimizer = settings.optimizer.build(self.model)
        self.config = settings.optimizer
        size, generator = settings.budget.batch_size, torch.Generator()
        self.total = settings.budget.tokens // (size * run_plan.task.sequence_length)
        batches = (run_plan.task.batch("train", settings.seed, i * size, size) for i in range(KEPT))
        self.views: list[View] = [run_plan.objective.view(batch, generator) for batch in batches]
        self.done = 0

    def step(self) -> None:
        view = self.views[self.done % KEPT]
        set_learning_rate(self.optimizer, self.done, self.total, self.config)
        logits_BTV = self.model(view.tokens_BT).logits_BTV
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), view.target_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss.item()
        self.done += 1


class Harness:
    """The trainer of a run, one turn of its loop at a time."""

    def __init__(self, settings: Settings, run_plan: Plan, stack: ExitStack) -> None:
        folder, result = RunFolder(settings.folder), planned_result(settings, run_plan)
        folder.root.mkdir(parents=True)
        tracker = open_tracker(
            settings.tracking,
            RunIdentity.of(result),
            folder.root,
            settings.resolved,
            derived(result, None),
        )
        stack.callback(tracker.close, None, 0)
        console = Console(settings.cell)
        self.trainer = Trainer(
            settings,
            strategy=build(settings, run_plan, ParallelDims()).strategy,
            task=run_plan.task,
            folder=folder,
            tracker=tracker,
            console=console,
            flops_per_token=run_plan.cost.flops_per_token,
            interruptions=stack.enter_context(Interruptions(settings.trainer.preemption_margin_seconds)),
            lock=stack.enter_context(RunLock(folder.root)),
        )
        self.trainer.model.train()
        limit = settings.trainer.step_timeout_seconds
        self.watchdog = stack.enter_context(Watchdog(limit, folder.root / "failures" / "hang.txt"))
        self.progress = stack.enter_context(console.progress(self.trainer.total_steps))

    def step(self) -> None:
        with self.watchdog.step():
            row = self.trainer.train_step()
        self.progress(self.trainer.state.step)
        self.trainer.after_step(row)


def compose(*words: str) -> Settings:
    """The settings of a run, as the command line would give them."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("config", overrides=[*WORDS, *words], return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    plain = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    return read_settings(read_sections(plain))


def take_turns(loops: dict[str, Loop], rounds: int, block: int) -> dict[str, Times]:
    """Times of every step of every loop, by round and position in its block. Every step is a turn."""
    names = list(loops)
    times = {name: np.zeros((rounds, block, 2)) for name in names}
    for round_ in range(-1, rounds):
        for turn in range(block if round_ >= 0 else min(block, WARM)):
            offset = (round_ + 1 + turn) % len(names)
            for name in names[offset:] + names[:offset]:
                begin = now()
                loops[name].step()
                if round_ >= 0:
                    times[name][round_, turn] = now() - begin
    return times


def now() -> Times:
    return np.array([time.perf_counter(), time.process_time()])


@contextmanager
def silence() -> Iterator[None]:
    """Lines of the console are printed, but nobody sees them."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def rows(times: dict[str, Times], stalls: Times, every: int) -> list[list[str]]:
    """Lines of the table: label, milliseconds of both, and the relative difference."""
    lines = []
    for label, name, baseline in COMPARED:
        step_seconds, baseline_seconds = least(times[name]), least(times[baseline])
        clock = times[name][..., 0].sum(1) / times[baseline][..., 0].sum(1) - 1
        lines.append(
            [
                label,
                f"{1000 * step_seconds:.2f}",
                f"{1000 * baseline_seconds:.2f}",
                f"{step_seconds / baseline_seconds - 1:.2%}",
                spread(clock),
            ]
        )
    between = every * least(times["silent"])
    share, clock = stalls[:, 0].min() / between, stalls[:, 0] / (every * np.median(times["silent"][..., 0]))
    both = (f"{1000 * seconds:.2f}" for seconds in (stalls[:, 0].min(), between))
    return [*lines, [f"checkpoint : {every} steps", *both, f"{share:.2%}", spread(clock)]]


def least(times: Times) -> float:
    """Processor time of a step: the least of all, plus the extra time of the last divided by the block."""
    step, last_step = times[..., 1].min(), times[:, -1, 1].min()
    return float(step + (last_step - step) / times.shape[1])


def spread(shares: Times) -> str:
    """The median and, in brackets, the quartiles, in percent."""
    low, middle, high = np.percentile(shares, (25, 50, 75))
    return f"{middle:.2%} ({low:.2%} to {high:.2%})"


def measure(
    scale: str, args: argparse.Namespace, folder: Path
) -> tuple[int, dict[str, float], list[list[str]]]:
    """Body parameters, the result of each line of the table by processor time, and these lines."""
    batch = f"budget.batch_size={args.batch}"
    overrides = (f"scale={scale}", f"task.sequence_length={args.length}", batch, f"runs={folder}")
    silent = compose(*overrides, f"trainer.log_every={NEVER}", "study.name=silent")
    logged = compose(*overrides, "tracking=wandb_offline", "study.name=logged")
    run_plan = plan(silent)
    every = TrainerConfig().checkpoint_every
    with ExitStack() as stack, silence():
        harness = Harness(silent, run_plan, stack)
        loops: dict[str, Loop] = {
            "bare": Bare(silent, run_plan),
            "silent": harness,
            "logged": Harness(logged, run_plan, stack),
            "again": Bare(silent, run_plan),
        }
        times = take_turns(loops, args.rounds, BLOCK)
        stalls = []
        for _ in range(args.rounds):
            harness.step()
            begin = now()
            harness.trainer.save(wait=True)
            stalls.append(now() - begin)
    lines = rows(times, np.array(stalls), every)
    shares = {line[0].split(" : ")[0]: float(line[3].rstrip("%")) / 100 for line in lines}
    return run_plan.cost.parameters.body, shares, lines


def main() -> None:
    args = parse()
    settle(args.threads)
    page = Page(args.output, args.json)
    page.say(f"{machine_line()}, load average {os.getloadavg()[0]:.1f}.")
    columns = ("compared", "ms, least", "beside it", "more", "more by the clock")
    for scale in args.scales:
        with tempfile.TemporaryDirectory() as folder:
            body, shares, lines = measure(scale, args, Path(folder))
        page.note(scale, {"body_parameters": body, "shares": shares})
        page.say(
            f"scale={scale}: a decoder of {body:,} body parameters in float32, {args.batch} sequences of "
            f"{args.length} bytes a step; {args.rounds} rounds of {BLOCK} steps of each loop. Goals: 2%, "
            "1% and 1%."
        )
        page.say(as_markdown(columns, lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scales", nargs="+", default=["nano", "micro"], help="files of conf/scale/")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10, help="blocks of 20 steps of each loop")
    add_outputs(parser)
    args = read_arguments(parser)
    scales = sorted(path.stem for path in (CONF / "scale").glob("*.yaml"))
    for scale in args.scales:
        if scale not in scales:
            parser.error(f"--scales {scale}: options: {', '.join(scales)}")
    if args.rounds < 2:
        parser.error(f"--rounds {args.rounds}: at least 2, or there is no spread")
    return args


if __name__ == "__main__":
    main()
