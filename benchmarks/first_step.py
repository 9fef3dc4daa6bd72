"""Time the wait for training: the seconds from the command to the end of its first step.

python benchmarks/first_step.py --starts 7 --against ../before

``archbench train`` is started again and again, and ended when it has printed the first step.
Checkouts take turns, so that a drift of the machine falls on all of them. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from machine import Page, add_checkouts, add_outputs, as_markdown, at_least_one, machine_line, read_arguments

ROOT = Path(__file__).resolve().parent.parent
WORDS = ("task=text", "scale=nano", "device=cpu", "device.threads=1", "trainer.log_every=1")


def first_step(checkout: Path, backbone: str) -> float:
    """Seconds from the command to the line of its first step."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*WORDS, f"backbone={backbone}", f"runs={folder}"]
        begin, output = time.perf_counter(), ""
        with subprocess.Popen(
            [sys.executable, "-m", "archbench.experiments.train", *overrides],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": f"{checkout}/src"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                if re.search(r" 1/\d+ ", line):
                    seconds = time.perf_counter() - begin
                    run.kill()
                    return seconds
                output += line
    sys.exit(f"{checkout}: the run ended before its first step:\n{output[-3000:]}")


def measure(checkouts: Sequence[Path], backbone: str, starts: int) -> dict[Path, list[float]]:
    """Seconds of each start, by checkout. The first start of each is not counted, because it fills caches."""
    seconds_of: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
    for turn in range(starts + 1):
        for checkout in checkouts:
            seconds = first_step(checkout, backbone)
            if turn > 0:
                seconds_of[checkout].append(seconds)
    return seconds_of


def main() -> None:
    args = parse()
    page = Page(args.output, args.json)
    page.say(f"{machine_line()}, load average {os.getloadavg()[0]:.1f}.")
    page.say(
        f"Seconds from the command to the end of the first step, {args.starts} starts: {' '.join(WORDS)}."
    )
    checkouts = [ROOT, *args.against]
    rows = []
    for backbone in args.backbones:
        seconds_of = measure(checkouts, backbone, args.starts)
        page.note(backbone, [seconds_of[checkout] for checkout in checkouts])
        rows += [
            [
                backbone,
                "this checkout" if checkout == ROOT else checkout.name,
                *(f"{pick(seconds_of[checkout]):.2f}" for pick in (statistics.median, min, max)),
            ]
            for checkout in checkouts
        ]
    page.say(as_markdown(("backbone", "code", "median, s", "least", "most"), rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=at_least_one, default=7)
    parser.add_argument("--backbones", nargs="+", default=["decoder"])
    add_checkouts(parser, "experiments/train.py")
    add_outputs(parser)
    return read_arguments(parser)


if __name__ == "__main__":
    main()
