"""Measures everything that has a goal, and prints the goals with what was measured: ``make bench``.

python benchmarks/goals.py
python benchmarks/goals.py --parts generation growth --folder /tmp/bench

Each part is another script of this folder in a process of its own, one after the other. The table, its
numbers (``goals.json``) and its figure (``goals.svg``) go to ``--folder``, ``benchmarks/results`` if nothing
is said, beside the page and the numbers of each part. With ``--parts`` only those are measured; the table
takes the others from the folder, and each row says where and when it was measured. ``--parts`` alone measures
nothing and prints the table anew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import matplotlib as mpl
from machine import Page, as_markdown

HERE = Path(__file__).parent
OURS_COMPILED = "ours, compiled blocks"
"""Our own model as ``peer_models`` names it, which is no peer."""
DENSE = ("decoder", "encoder", "encoder_decoder")
FAMILIES = (*DENSE, "gpt2", "moe", "mamba2")
"""Those that train beside peers in both precisions."""
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
    "attention": ("attention.py", "--lengths", "256", "512", "--turns", "5"),
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


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One line of the table."""

    what: str
    limit: float
    """At least this; at most this where ``most``."""
    most: bool = False
    percent: bool = False
    cells: dict[str, float]
    """What was measured, by the setting it was measured at."""
    part: str
    """The part of the benchmark that measured it."""

    def __post_init__(self) -> None:
        assert self.cells, self.what

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.most else value >= self.limit

    @property
    def met(self) -> int:
        """Cells that reach the goal."""
        return sum(self.holds(value) for value in self.cells.values())

    def say(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else f"{value:.2f}" if value < 100 else f"{value:.0f}"

    def row(self, machine: str) -> list[str]:
        values = sorted(self.cells.values())
        measured = self.say(statistics.median(values))
        if len(values) > 1:
            measured += f" ({self.say(values[0])} to {self.say(values[-1])})"
        verdict = "met" if self.met == len(values) else "missed" if not self.met else "in part"
        if len(values) > 1:
            verdict += f", {self.met} of {len(values)}"
        return [
            self.what,
            f"{'at most' if self.most else 'at least'} {self.say(self.limit)}",
            measured,
            verdict,
            machine,
        ]


def training_goals(found: dict[str, Any]) -> Iterator[Goal]:
    """Steps beside the fastest peer, and the decoder's share of a matrix product."""
    parts = {"dense": DENSE, "others": ("gpt2", "moe", "mamba2")}
    for part, families in parts.items():
        for family in families:
            for precision in ("fp32", "bf16"):
                if own := cells(found, part, family, precision, fastest_peer):
                    what = f"training step, {family}, {precision}: times the fastest peer, not compiled"
                    limit = 2.0 if family == "mamba2" else 1.1
                    yield Goal(what=what, limit=limit, cells=own, part=part)
    for peer, limit in (("transformers", 100.0), ("mambapy", 3.0)):
        value = partial(ratio_to, peer)
        if own := cells(found, "mamba", "mamba", "fp32", value):
            what = f"training step, mamba, fp32: times {peer}"
            yield Goal(what=what, limit=limit, cells=own, part="mamba")
    for precision, limit in (("fp32", 0.75), ("bf16", 0.65)):
        own = cells(found, "dense", "decoder", precision, lambda row: row["matmul_share"])
        own = {name: value for name, value in own.items() if name.startswith("d_model 512, T 512")}
        if own:
            what = f"decoder's step, {precision}: share of the rate of a matrix product"
            yield Goal(what=what, limit=limit, percent=True, cells=own, part="dense")


def compiled_goals(found: dict[str, Any]) -> Iterator[Goal]:
    """Steps beside the fastest peer where peers are compiled too, and compiled blocks beside plain ones."""
    for family in FAMILIES:
        for precision in ("fp32", "bf16"):
            if own := cells(found, "compiled", family, precision, fastest_peer):
                what = f"training step, {family}, {precision}: times the fastest peer, compiled or not"
                limit = 2.0 if family == "mamba2" else 1.1
                yield Goal(what=what, limit=limit, cells=own, part="compiled")
    own = {
        f"{family}, {precision}": value
        for family in FAMILIES
        for precision in ("fp32", "bf16")
        for value in cells(found, "compiled", family, precision, blocks_over_plain).values()
    }
    if own:
        what = "trainer.compile=blocks: times trainer.compile=none"
        yield Goal(what=what, limit=1.0, cells=own, part="compiled")


def attention_goals(found: dict[str, Any]) -> Iterator[Goal]:
    """Training by the C++ kernel where a model takes it, beside PyTorch's attention."""
    for precision, limit in (("fp32", 1.2), ("bf16", 1.5)):
        own = {
            f"{row['mask']}, T {row['length']}": row["training"]
            for row in found.get("attention", {}).get("attention", [])
            if row["precision"] == precision and row["takes_training"]
        }
        if own:
            what = f"attention, {precision}, forward and backward, where it runs in C++: times PyTorch's"
            yield Goal(what=what, limit=limit, cells=own, part="attention")


def cells(
    found: dict[str, Any],
    part: str,
    family: str,
    precision: str,
    value: Callable[[dict[str, Any]], float],
) -> dict[str, float]:
    """A number of each row of a part, by its size."""
    return {
        f"d_model {row['d_model']}, T {row['length']}, {row['vocab_size']} tokens": value(row)
        for row in found.get(part, {}).get("training", [])
        if row["family"] == family and row["precision"] == precision
    }


def fastest_peer(row: dict[str, Any]) -> float:
    """Return the speed of ours as a multiple of the fastest model of others that does the same work."""
    same = {name: peer for name, peer in row["peers"].items() if name != OURS_COMPILED}
    return min(peer["ratio"] for peer in same.values() if peer["mixed"] or row["precision"] == "fp32")


def blocks_over_plain(row: dict[str, Any]) -> float:
    """Return the speed of compiled blocks as a multiple of plain ones; a ratio is of theirs to ours."""
    return 1 / float(row["peers"][OURS_COMPILED]["ratio"])


def ratio_to(peer: str, row: dict[str, Any]) -> float:
    return float(row["peers"][peer]["ratio"])


def decoding_goals(found: dict[str, Any]) -> Iterator[Goal]:
    part = found.get("generation", {})
    rows = part.get("generation", [])
    for family in dict.fromkeys(row["family"] for row in rows):
        own = {f"{row['batch_size']} sequences": row["ratio"] for row in rows if row["family"] == family}
        yield Goal(
            what=f"greedy writing, {family}: times transformers", limit=2.5, cells=own, part="generation"
        )
    if part.get("bandwidth", {}).get("share") is not None:
        own = {"1 sequence": part["bandwidth"]["share"]}
        what = "decoding, 100 million parameters: share of the memory's bandwidth"
        yield Goal(what=what, limit=0.6, percent=True, cells=own, part="generation")
    if "without_cache" in part:
        own = {"1 sequence": part["without_cache"]["ratio"]}
        yield Goal(
            what="decoding with a cache: times without, after 2,048 tokens",
            limit=10.0,
            cells=own,
            part="generation",
        )


def other_goals(found: dict[str, Any]) -> Iterator[Goal]:
    growth = found.get("growth", {})
    if growth:
        what = "training cost of state-space models: power of the length"
        yield Goal(what=what, limit=1.05, most=True, cells=growth["exponents"], part="growth")
        what = "their decoding cost after 512 to 32,768 tokens: largest deviation"
        deviations = growth["deviations"]
        yield Goal(what=what, limit=0.05, most=True, percent=True, cells=deviations, part="growth")
    shares = found.get("harness", {}).get("micro", {}).get("shares", {})
    for name, limit in (("harness", 0.02), ("with records", 0.01), ("checkpoint", 0.01)):
        if name in shares:
            what = {
                "harness": "harness over a bare loop",
                "with records": "logging",
                "checkpoint": "checkpoints",
            }
            own = {"scale=micro": shares[name]}
            yield Goal(what=what[name], limit=limit, most=True, percent=True, cells=own, part="harness")
    if "speedup" in found.get("diffusion", {}):
        what = "masked diffusion, tokens a second at equal quality: blocks and cache over one token a pass"
        yield Goal(
            what=what, limit=8.0, cells={"1 sequence": found["diffusion"]["speedup"]}, part="diffusion"
        )


def draw(goals: list[Goal], path: Path) -> None:
    """Each cell as a share of its goal, turned so that more is better; the line is the goal."""
    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.34 * len(goals) + 1))
    for place, goal in enumerate(reversed(goals)):
        for value in goal.cells.values():
            share = goal.limit / max(value, 1e-4) if goal.most else value / goal.limit
            colour = "#0072B2" if goal.holds(value) else "#D55E00"
            axes.plot(min(share, 100), place, "o", color=colour, alpha=0.6, markersize=6)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(goals)), [goal.what for goal in reversed(goals)], fontsize=8)
    axes.set_xlabel("reached, as a multiple of the goal (right of the line: met)")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def run(name: str, folder: Path) -> None:
    """Measures one part; its page and its numbers go to the folder."""
    script, *words = PARTS[name]
    outputs = ["--output", str(folder / f"{name}.md"), "--json", str(folder / f"{name}.json")]
    subprocess.run([sys.executable, str(HERE / script), *words, *outputs], check=True)


def read_parts(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The numbers of each part that the folder has, and the first line of its page: machine, date, commit."""
    names = [name for name in PARTS if (folder / f"{name}.json").exists()]
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    lines = {name: (folder / f"{name}.md").read_text().splitlines()[0] for name in names}
    return found, {name: line.split(", load average")[0].rstrip(".") + "." for name, line in lines.items()}


def compile_seconds(found: dict[str, Any]) -> float:
    """Seconds that the first steps of compiled models took longer than their others."""
    rows = found.get("compiled", {}).get("training", [])
    return sum(peer.get("compile_seconds", 0.0) for row in rows for peer in row["peers"].values())


def all_goals(found: dict[str, Any]) -> list[Goal]:
    kinds = (training_goals, compiled_goals, attention_goals, decoding_goals, other_goals)
    return [goal for kind in kinds for goal in kind(found)]


def main() -> None:
    args = parse()
    begin = time.perf_counter()
    for number, name in enumerate(args.parts, 1):
        print(
            f"part {number} of {len(args.parts)}: {name}, {time.perf_counter() - begin:.0f} s so far",
            flush=True,
        )
        run(name, args.folder)
    found, machines = read_parts(args.folder)
    goals = all_goals(found)
    lines = dict.fromkeys(machines.values())
    letters = {line: letter for letter, line in zip(ascii_lowercase, lines, strict=False)}
    page = Page(args.folder / "goals.md", args.folder / "goals.json")
    for line, letter in letters.items():
        parts = [name for name, its in machines.items() if its == line]
        page.say(f"{letter}: {line} Parts: {', '.join(parts)}.")
    rows = [goal.row(letters[machines[goal.part]]) for goal in goals]
    page.say(as_markdown(("what", "goal", "median (least to most)", "verdict", "on"), rows))
    page.note("goals", [{**asdict(goal), "met": goal.met, "on": machines[goal.part]} for goal in goals])
    minutes = (time.perf_counter() - begin) / 60
    compiling = compile_seconds(found) / 60 if "compiled" in args.parts else 0.0
    print(f"{len(args.parts)} parts measured in {minutes:.0f} minutes, {compiling:.0f} of them compiling.")
    draw(goals, args.folder / "goals.svg")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, default=HERE / "results")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"--folder {args.folder}: there is no such folder; make it first")
    return args


if __name__ == "__main__":
    main()
