"""Compare training of the models of ``make compare`` with another checkout, in tokens a second and thread.

python benchmarks/nano.py --against ../before --task text
python benchmarks/nano.py --against ../before --against-words device.kernels=torch

Each checkout trains in a child process, with its code, and all of them take turns step by step: a
machine that slows down slows all. The full step of the trainer is timed, as in a run of study=compare. The
page also gives the processor time of the process, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("decoder", "moe", "hybrid", "mamba", "s4", "encoder", "encoder_decoder", "masked_diffusion")
TASKS = ("text", "recall_8_pairs", "infilling")
Seconds = list[list[float]]
"""Of every step: by the clock, and of the processor."""
WARM = 5
"""Steps that come first and are not counted."""


def train(backbone: str, task: str, *more: str) -> None:
    """``--train BACKBONE TASK OVERRIDES``: run a step for each line read, and print its seconds."""
    sys.path.insert(0, str(Path.cwd() / "benchmarks"))  # of the checkout that this process is started in
    from machine import settle
    from overhead import NEVER, Harness, compose, plan, silence

    from archbench.architectures import fast_paths  # also of that checkout

    settle(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        overrides = (f"backbone={backbone}", f"task={task}", f"runs={folder}", "device=cpu")
        never = (f"trainer.checkpoint_every={NEVER}", f"trainer.log_every={NEVER}")
        settings = compose("study=compare", "study.tuned=null", *overrides, *never, *more)
        fast_paths.choose(settings.device.kernels)
        with silence():
            harness = Harness(settings, plan(settings), stack)
            harness.step()
        print(json.dumps({"tokens": harness.trainer.tokens_per_step}), flush=True)
        for _ in sys.stdin:
            begin = time.perf_counter(), time.process_time()
            with silence():
                harness.step()
            print(json.dumps([time.perf_counter() - begin[0], time.process_time() - begin[1]]), flush=True)


class Trained:
    """A process that trains a model with the code of a checkout, a step at a time."""

    def __init__(self, checkout: Path, backbone: str, task: str, overrides: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--train", backbone, task, *overrides],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": f"{checkout}/src"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> object:
        """Return its next line, decoded."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args}: ended with code {self.process.wait()}")
        return json.loads(line)

    def step(self) -> list[float]:
        """Take a step. Returns its seconds, by the clock and of the processor."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        times = self.read()
        assert isinstance(times, list)
        return times


def measure(
    checkouts: Sequence[Path], backbone: str, task: str, steps: int, overrides: Sequence[str]
) -> tuple[int, list[list[list[float]]]]:
    """Tokens of a step, and of each checkout the seconds of every step: by the clock, of the processor.

    All checkouts but the first train with ``overrides``.
    """
    first_checkout, *other_checkouts = checkouts
    trained = [
        Trained(first_checkout, backbone, task, ()),
        *(Trained(checkout, backbone, task, overrides) for checkout in other_checkouts),
    ]
    try:
        (tokens,) = {worker.read()["tokens"] for worker in trained}  # type: ignore[index]  # the same for all
        seconds_of: list[Seconds] = [[] for _ in trained]
        for turn in range(WARM + steps):
            for offset in range(len(trained)):
                index = (offset + turn) % len(trained)
                seconds = trained[index].step()
                if turn >= WARM:
                    seconds_of[index].append(seconds)
    finally:
        for worker in trained:
            worker.process.kill()
            worker.process.communicate()
    return tokens, seconds_of


def row(backbone: str, tokens: int, seconds_of: Sequence[Seconds]) -> list[str]:
    """A line of the table: tokens a second of each, and how many times as fast the first is as each other."""
    first_seconds = seconds_of[0]
    clock, processor = (
        [statistics.median(s[kind] for s in steps) for steps in seconds_of] for kind in (0, 1)
    )
    ratios = [
        f"{statistics.median(b[kind] / a[kind] for a, b in zip(first_seconds, peer, strict=True)):.2f}"
        for peer in seconds_of[1:]
        for kind in (0, 1)
    ]
    speeds = [f"{tokens / seconds:,.0f}" for seconds in clock]
    return [backbone, *speeds, f"{1000 * processor[0]:.1f}", *ratios]


def main() -> None:
    from machine import Page, as_markdown, machine_line, settle

    args = parse()
    settle(1)
    page = Page(args.output, args.json)
    page.say(f"{machine_line()}, load average {os.getloadavg()[0]:.1f}.")
    page.say(
        f"study=compare, task={args.task}, one thread, {args.steps} steps. Ratios are medians over pairs of "
        "steps taken after each other: how many times as fast this checkout is."
    )
    other_names = [path.name for path in args.against]
    columns = [
        "model", "tokens/s", *(f"{name}, tokens/s" for name in other_names), "processor, ms a step",
        *(f"{kind}, times {name}" for name in other_names for kind in ("clock", "processor")),
    ]  # fmt: skip
    lines = []
    for backbone in args.models:
        tokens, seconds = measure([ROOT, *args.against], backbone, args.task, args.steps, args.against_words)
        page.note(backbone, {"tokens": tokens, "seconds": seconds})
        lines.append(row(backbone, tokens, seconds))
        print(" ".join(lines[-1]), file=sys.stderr, flush=True)
    page.say(as_markdown(columns, lines))


def parse() -> argparse.Namespace:
    from machine import add_checkouts, add_outputs, at_least_one, read_arguments

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--task", default="text", choices=TASKS)
    parser.add_argument("--steps", type=at_least_one, default=40)
    add_checkouts(parser, "benchmarks/overhead.py")
    parser.add_argument(
        "--against-words", nargs="+", default=[], help="settings of the other checkouts, as in a command"
    )
    add_outputs(parser)
    return read_arguments(parser)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(*sys.argv[2:])
    else:
        main()
