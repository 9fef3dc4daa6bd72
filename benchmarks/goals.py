"""Measures everything that has a goal, and prints the goals with what was measured: ``make bench``.

python benchmarks/goals.py
python benchmarks/goals.py --parts generation growth --results /tmp/bench
python benchmarks/goals.py --instruction-sets avx2 --parts attention

Each part is another script of this folder in a process of its own, one after the other. A processor with
AVX-512 is measured twice: as it is, and limited to AVX2 (our kernels and PyTorch's libraries), in float32 and
without the parts that do not depend on it. The page of a part and its
numbers go to a folder of this processor in ``--results``, ``benchmarks/results`` if nothing is said. There
too go the table, which has a column for every processor with such a folder, its numbers (``goals.json``) and
its figure (``goals.svg``). With ``--parts`` only those are measured; the table takes the others from the
folder, and each entry says when and at which commit it was measured. ``--parts`` alone measures nothing and
prints the table anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import matplotlib as mpl
from machine import Page, as_markdown, processor_folder
from measured_goals import DENSE, FAMILIES, Goal, all_goals

from architectures.kernels.cpu import instruction_sets
from architectures.kernels.cpu.instruction_sets import NATIVE

HERE = Path(__file__).parent
BOTH = ("--precision", "fp32", "bf16")
PARTS: dict[str, tuple[str, ...]] = {
    "dense": (
        "training.py", "--families", *DENSE, "--d-model", "512", "--lengths", "512",
        "--vocab", "256", "8192", *BOTH, "--tokens", "1024", "--rounds", "3",
    ),
    "others": (
        "training.py", "--families", "gpt2", "moe", "mamba2", "--lengths", "512", *BOTH,
        "--tokens", "1024", "--rounds", "3",
    ),
    "attention": ("attention.py", "--lengths", "64", "256", "512", *BOTH, "--turns", "5"),
    "kernels": ("kernels.py", *BOTH, "--turns", "3"),
    "mamba": ("training.py", "--families", "mamba", "--layers", "1", "--rounds", "3"),
    "generation": ("decoding.py", "--rounds", "3"),
    "growth": (
        "scan.py", "--growth", "--layers", "mamba", "mamba2", "s4", "--repeats", "3", "--threads", "1",
    ),
    "harness": ("overhead.py", "--scales", "micro", "--batch", "4", "--rounds", "4", "--threads", "1"),
    "diffusion": ("diffusion.py", "--threads", "1"),
    "compiled": (
        "training.py", "--compiled", "--families", *FAMILIES, "--layers", "2", *BOTH, "--rounds", "3",
    ),
}  # fmt: skip
"""What is run for each part."""
LIMITED = ("dense", "others", "attention", "kernels", "mamba", "generation", "compiled")
"""The parts that are measured with fewer instructions too, in float32."""


def draw(machines: Sequence[Machine], path: Path) -> None:
    """Each cell as a share of its goal, turned so that more is better; the line is the goal."""
    mpl.use("svg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(goal.what for machine in machines for goal in machine.goals))
    places = {name: place for place, name in enumerate(reversed(names))}
    figure, axes = plt.subplots(figsize=(9, 0.34 * len(names) + 1))
    for machine, marker in zip(machines, cycle("os^D"), strict=False):
        axes.plot([], [], marker, color="grey", label=machine.name)
        for goal in machine.goals:
            for value in goal.cells.values():
                share = goal.limit / max(value, 1e-4) if goal.most else value / goal.limit
                colour = "#0072B2" if goal.holds(value) else "#D55E00"
                at = min(share, 100), places[goal.what]
                axes.plot(*at, marker, color=colour, alpha=0.6, markersize=6)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(list(places.values()), list(places), fontsize=8)
    axes.set_xlabel("reached, as a multiple of the goal (right of the line: met)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def run(name: str, folder: Path, limit: str) -> None:
    """Measures one part; its page and its numbers go to the folder."""
    script, *words = PARTS[name]
    environment = dict(os.environ)
    if limit != NATIVE:
        words = [word for word in words if word != "bf16"]
        environment |= instruction_sets.environment(limit)
    outputs = ["--output", str(folder / f"{name}.md"), "--json", str(folder / f"{name}.json")]
    subprocess.run([sys.executable, str(HERE / script), *words, *outputs], check=True, env=environment)


def read_parts(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The numbers of each part that the folder has, and the first line of its page: machine, date, commit."""
    names = [name for name in PARTS if (folder / f"{name}.json").exists()]
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    lines = {name: (folder / f"{name}.md").read_text().splitlines()[0] for name in names}
    return found, {name: line.split(", load average")[0].rstrip(".") + "." for name, line in lines.items()}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The measurements on a single processor."""

    name: str
    goals: list[Goal]
    lines: dict[str, str]
    """Of each part, the first line of its page."""


def read_machines(results: Path) -> list[Machine]:
    """The processors that the folder has measurements of."""
    machines = []
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        found, lines = read_parts(folder)
        if found:
            name = next(iter(lines.values())).partition(", ")[0]
            machines.append(Machine(name=name, goals=all_goals(found), lines=lines))
    return machines


def say_table(page: Page, machines: Sequence[Machine]) -> None:
    """When and where each part was measured, and what each goal came to on every processor."""
    lines = dict.fromkeys(line for machine in machines for line in machine.lines.values())
    letters = dict(zip(lines, ascii_lowercase, strict=False))
    for line, letter in letters.items():
        parts = [name for machine in machines for name, its in machine.lines.items() if its == line]
        page.say(f"{letter}: {line} Parts: {', '.join(parts)}.")
    asked = {goal.what: goal.asked for machine in machines for goal in machine.goals}
    entries = [
        {goal.what: f"{goal.measured}, {letters[machine.lines[goal.part]]}" for goal in machine.goals}
        for machine in machines
    ]
    rows = [[what, goal, *(own.get(what, "") for own in entries)] for what, goal in asked.items()]
    columns = ("what", "goal", *(machine.name for machine in machines))
    page.say(as_markdown(columns, rows))
    for machine in machines:
        noted = [{**asdict(goal), "met": goal.met, "on": machine.lines[goal.part]} for goal in machine.goals]
        page.note(machine.name, noted)


def main() -> None:
    args = parse()
    begin = time.perf_counter()
    parts = [
        (limit, name)
        for limit in args.instruction_sets
        for name in args.parts
        if limit == NATIVE or name in LIMITED
    ]
    failed = []
    for number, (limit, name) in enumerate(parts, 1):
        spent = time.perf_counter() - begin
        print(f"part {number} of {len(parts)}: {name}, {limit}, {spent:.0f} s so far", flush=True)
        folder = args.results / processor_folder(limit)
        folder.mkdir(exist_ok=True)
        try:
            run(name, folder, limit)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}, {limit}: {error}")
    machines = read_machines(args.results)
    if not machines:
        sys.exit(f"--results {args.results}: nothing was measured yet")
    say_table(Page(args.results / "goals.md", args.results / "goals.json"), machines)
    minutes = (time.perf_counter() - begin) / 60
    print(f"{len(parts) - len(failed)} parts measured in {minutes:.0f} minutes.")
    draw(machines, args.results / "goals.svg")
    sys.exit("\n".join(failed) or None)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    sets = ["native", *instruction_sets.INSTRUCTION_SETS]
    wide = instruction_sets.runs_here("avx512")
    parser.add_argument(
        "--instruction-sets", nargs="+", choices=sets, default=[NATIVE, "avx2"] if wide else [NATIVE]
    )
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    if not args.results.is_dir():
        parser.error(f"--results {args.results}: there is no such folder; make it first")
    return args


if __name__ == "__main__":
    main()
