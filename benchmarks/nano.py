"""Train the models of ``make compare`` beside another checkout, and print tokens a second and thread.

python benchmarks/nano.py --against ../before --task text
python benchmarks/nano.py --against ../before --against-words device.kernels=torch

Each checkout trains in a process of its own, with its own code, and all of them take turns step by step: a
machine that slows down slows all. The trainer's whole step is timed, as a run of study=compare takes it. The
processor time of the process is given too, which other work on the machine disturbs less.
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
    """``--train BACKBONE TASK WORDS``: takes a step for each line it reads, and says what it took."""
    sys.path.insert(0, str(Path.cwd() / "benchmarks"))  # of the checkout that this process is started in
    from machine import settle
    from overhead import NEVER, Harness, compose, plan, silence

    from architectures.kernels import pointwise  # of that checkout too

    settle(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        words = (f"backbone={backbone}", f"task={task}", f"runs={folder}", "device=cpu")
        never = (f"trainer.checkpoint_every={NEVER}", f"trainer.log_every={NEVER}")
        settings = compose("study=compare", *words, *never, *more)
        pointwise.choose(settings.device.kernels)
        with silence():
            harness = Harness(settings, plan(settings), held)
            harness.step()
        print(json.dumps({"tokens": harness.trainer.tokens_per_step}), flush=True)
        for _ in sys.stdin:
            begin = time.perf_counter(), time.process_time()
            with silence():
                harness.step()
            print(json.dumps([time.perf_counter() - begin[0], time.process_time() - begin[1]]), flush=True)


class Trained:
    """A process that trains a model with the code of a checkout, a step at a time."""

    def __init__(self, checkout: Path, backbone: str, task: str, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--train", backbone, task, *words],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
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
        found = self.read()
        assert isinstance(found, list)
        return found


def measure(
    checkouts: Sequence[Path], backbone: str, task: str, steps: int, words: Sequence[str]
) -> tuple[int, list[list[list[float]]]]:
    """Tokens of a step, and of each checkout the seconds of every step: by the clock, of the processor.

    All checkouts but the first train with ``words`` too.
    """
    first, *others = checkouts
    trained = [Trained(first, backbone, task, ()), *(Trained(each, backbone, task, words) for each in others)]
    try:
        (tokens,) = {one.read()["tokens"] for one in trained}  # type: ignore[index]  # the same for all
        found: list[Seconds] = [[] for _ in trained]
        for turn in range(WARM + steps):
            for place in range(len(trained)):
                number = (place + turn) % len(trained)
                seconds = trained[number].step()
                if turn >= WARM:
                    found[number].append(seconds)
    finally:
        for one in trained:
            one.process.kill()
            one.process.communicate()
    return tokens, found


def row(backbone: str, tokens: int, found: Sequence[Seconds]) -> list[str]:
    """A line of the table: tokens a second of each, and how many times as fast the first is as each other."""
    own = found[0]
    clock, processor = ([statistics.median(s[kind] for s in steps) for steps in found] for kind in (0, 1))
    ratios = [
        f"{statistics.median(theirs[kind] / ours[kind] for ours, theirs in zip(own, other, strict=True)):.2f}"
        for other in found[1:]
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
    others = [path.name for path in args.against]
    columns = [
        "model", "tokens/s", *(f"{name}, tokens/s" for name in others), "processor, ms a step",
        *(f"{kind}, times {name}" for name in others for kind in ("clock", "processor")),
    ]  # fmt: skip
    lines = []
    for backbone in args.models:
        tokens, found = measure([ROOT, *args.against], backbone, args.task, args.steps, args.against_words)
        page.note(backbone, {"tokens": tokens, "seconds": found})
        lines.append(row(backbone, tokens, found))
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
