"""Measure everything that has a goal, and print the goals with the measured values: ``make bench``.

python benchmarks/goals.py
python benchmarks/goals.py --parts generation growth --results /tmp/bench
python benchmarks/goals.py --instruction-sets avx2 --parts attention

Each part is another script of this folder in its own process, one after the other. A processor with AVX-512
is measured twice: with all instructions, and limited to AVX2 (our kernels and PyTorch's libraries), in fp32
and without the parts that do not depend on it. The page and the values of a part are written to a folder of
this processor in ``--results`` (default ``benchmarks/results``). The summary (``goals.md``), all goals
(``goals.csv``, ``goals.json``) and their figure (``goals.svg``) cover every processor with such a folder.
With ``--parts`` only those are measured; the other parts are read from the folder. ``--parts`` without a name
prints the summary without measuring.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from machine import Page, as_markdown, processor_folder
from measured_goals import DENSE, FAMILIES, Goal, all_goals

from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.style import PALETTE, log_axis, make_panels
from archbench.architectures.kernels.cpu import instruction_sets
from archbench.architectures.kernels.cpu.instruction_sets import NATIVE

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
"""The script and arguments of each part."""
MARKS = ("circle", "square", "triangle-up", "diamond")
"""Of the machines, in turn."""
LIMITED = ("dense", "others", "attention", "kernels", "mamba", "generation", "compiled")
"""The parts that are also measured with fewer instructions, in float32."""


def draw(machines: Sequence[Machine], path: Path) -> None:
    """Draw each measured value as a multiple of its goal, inverted where less is better."""
    names = list(dict.fromkeys(goal.what for machine in machines for goal in machine.goals))
    figure, [cell] = make_panels([""])
    for machine, symbol in zip(machines, cycle(MARKS), strict=False):
        figure.add_traces(_points(machine, names, symbol))
    figure.add_vline(1.0, line={"color": "black", "width": 1.3}, layer="between", **cell)
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, tickfont={"size": 11}, showgrid=False,
        range=[len(names), -1], **cell,
    )  # fmt: skip
    multiples = [multiple for trace in figure.data for multiple in trace.x]
    figure.update_xaxes(
        title_text="measured, as a multiple of the goal (right of the line: reached)",
        **log_axis(multiples, "{:g}".format), **cell,
    )  # fmt: skip
    figure.update_layout(width=1200, height=27 * len(names) + 130)
    path.write_bytes(printed(figure, "svg"))


def _points(machine: Machine, names: Sequence[str], symbol: str) -> list[go.Scatter]:
    """Return the entry of a machine in the legend, its values that reach their goals, and the others."""
    measured = [(goal, value) for goal in machine.goals for value in goal.cells.values()]
    entry = {"color": "grey", "symbol": symbol}
    points = [go.Scatter(x=[math.nan], y=[math.nan], mode="markers", marker=entry, name=machine.name)]
    for reached, colour in ((True, PALETTE[0]), (False, PALETTE[3])):
        shown = [(goal, value) for goal, value in measured if goal.holds(value) == reached]
        multiples = [goal.limit / max(v, 1e-4) if goal.most else v / goal.limit for goal, v in shown]
        points.append(
            go.Scatter(
                x=[min(multiple, 100) for multiple in multiples],
                y=[names.index(goal.what) for goal, _ in shown], mode="markers", opacity=0.6,
                marker={"color": colour, "symbol": symbol, "size": 10}, showlegend=False,
            )
        )  # fmt: skip
    return points


def run(name: str, folder: Path, limit: str) -> None:
    """Measure one part; write its page and its values to the folder."""
    script, *arguments = PARTS[name]
    environment = dict(os.environ)
    if limit != NATIVE:
        arguments = [argument for argument in arguments if argument != "bf16"]
        environment |= instruction_sets.environment(limit)
    outputs = ["--output", str(folder / f"{name}.md"), "--json", str(folder / f"{name}.json")]
    subprocess.run([sys.executable, str(HERE / script), *arguments, *outputs], check=True, env=environment)


def read_parts(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of each part in the folder, and the first line of its page: machine, date, commit."""
    names = [name for name in PARTS if (folder / f"{name}.json").exists()]
    values = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    lines = {name: (folder / f"{name}.md").read_text().splitlines()[0] for name in names}
    return values, {name: line.split(", load average")[0].rstrip(".") + "." for name, line in lines.items()}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The measurements on a single processor."""

    name: str
    goals: list[Goal]
    lines: dict[str, str]
    """Of each part, the first line of its page."""


def read_machines(results: Path) -> list[Machine]:
    """Return the processors with measurements in the folder."""
    machines = []
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        values, lines = read_parts(folder)
        if values:
            name = next(iter(lines.values())).partition(", ")[0]
            machines.append(Machine(name=name, goals=all_goals(values), lines=lines))
    return machines


COLUMNS = ("what", "goal", "processor", "median", "minimum", "maximum", "reached", "of", "measured")


def write_csv(path: Path, machines: Sequence[Machine]) -> None:
    """Write every goal on every processor: the values, how many reach it, and when it was measured."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for machine in machines:
            for goal in machine.goals:
                values = [goal.say(value) for value in (goal.median, goal.minimum, goal.maximum)]
                counts = (goal.reached, len(goal.cells))
                writer.writerow(
                    [goal.what, goal.required, machine.name, *values, *counts, machine.lines[goal.part]]
                )


def say_table(page: Page, machines: Sequence[Machine]) -> None:
    """Print for each group of goals the range of their medians, and how many reach the goal."""
    groups = dict.fromkeys(goal.group for machine in machines for goal in machine.goals)
    rows = []
    for group in groups:
        members = [[goal for goal in machine.goals if goal.group == group] for machine in machines]
        goals = [goal for group_goals in members for goal in group_goals]
        limits = dict.fromkeys(goal.say(goal.limit) for goal in goals)
        required = f"{goals[0].direction} {' or '.join(limits)}"
        rows.append([group, required, *(summarise(goals) for goals in members)])
    page.say(as_markdown(("what", "goal", *(machine.name for machine in machines)), rows))
    for machine in machines:
        noted = [
            {**asdict(goal), "reached": goal.reached, "on": machine.lines[goal.part]}
            for goal in machine.goals
        ]
        page.note(machine.name, noted)


def summarise(goals: Sequence[Goal]) -> str:
    """Return the range of the medians of goals, and how many reach theirs in every configuration."""
    if not goals:
        return ""
    ordered = sorted(goals, key=lambda goal: goal.median)
    values = dict.fromkeys(goal.say(goal.median) for goal in (ordered[0], ordered[-1]))
    reached = sum(goal.reached == len(goal.cells) for goal in goals)
    return f"{' to '.join(values)}; {reached} of {len(goals)}"


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
    for index, (limit, name) in enumerate(parts, 1):
        spent = time.perf_counter() - begin
        print(f"part {index} of {len(parts)}: {name}, {limit}, {spent:.0f} s so far", flush=True)
        folder = args.results / processor_folder(limit)
        folder.mkdir(exist_ok=True)
        try:
            run(name, folder, limit)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}, {limit}: {error}")
    machines = read_machines(args.results)
    if not machines:
        sys.exit(f"--results {args.results}: no measurement yet")
    say_table(Page(args.results / "goals.md", args.results / "goals.json"), machines)
    write_csv(args.results / "goals.csv", machines)
    minutes = (time.perf_counter() - begin) / 60
    print(f"{len(parts) - len(failed)} parts measured in {minutes:.0f} minutes.")
    print(f"Every goal, with its minimum, maximum and date: {args.results / 'goals.csv'}")
    draw(machines, args.results / "goals.svg")
    sys.exit("\n".join(failed) or None)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    sets = ["native", *instruction_sets.INSTRUCTION_SETS]
    has_avx512 = instruction_sets.runs_here("avx512")
    parser.add_argument(
        "--instruction-sets", nargs="+", choices=sets, default=[NATIVE, "avx2"] if has_avx512 else [NATIVE]
    )
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    if not args.results.is_dir():
        parser.error(f"--results {args.results}: there is no such folder; make it first")
    return args


if __name__ == "__main__":
    main()
