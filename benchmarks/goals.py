"""Measures everything that has a goal, and prints the goals with what was measured: ``make bench``.

python benchmarks/goals.py
python benchmarks/goals.py --parts generation growth --folder /tmp/bench

Each part is another script of this folder in a process of its own, one after the other. The table, its
numbers (``goals.json``) and its figure (``goals.svg``) go to ``--folder``, ``benchmarks/results`` if nothing
is said, beside the page and the numbers of each part. With ``--parts`` only those are measured; the table
takes the others from the folder.
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
from pathlib import Path
from typing import Any

import matplotlib as mpl
from machine import Page, as_markdown, machine_line

HERE = Path(__file__).parent
DENSE = ("decoder", "encoder", "encoder_decoder")
BOTH = ("--precision", "fp32", "bf16")
PARTS: dict[str, tuple[str, ...]] = {
    "dense": (
        "training.py", "--families", *DENSE, "--d-model", "256", "512", "--lengths", "256", "512",
        "--vocab", "256", "8192", *BOTH, "--tokens", "1024", "--rounds", "3",
    ),
    "others": (
        "training.py", "--families", "gpt2", "moe", "mamba2", "--lengths", "256", "512", *BOTH,
        "--tokens", "1024", "--rounds", "3",
    ),
    "mamba": ("training.py", "--families", "mamba", "--layers", "1", "--rounds", "5"),
    "generation": ("decoding.py",),
    "growth": (
        "scan.py", "--growth", "--layers", "mamba", "mamba2", "s4", "--repeats", "3", "--threads", "1",
    ),
    "harness": ("overhead.py", "--scales", "micro", "--batch", "4", "--rounds", "4", "--threads", "1"),
    "diffusion": ("diffusion.py", "--threads", "1"),
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

    def row(self) -> list[str]:
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
        ]


def training_goals(found: dict[str, Any]) -> Iterator[Goal]:
    """Steps beside the fastest peer, and the decoder's share of a matrix product."""
    rows = [row for part in ("dense", "others", "mamba") for row in found.get(part, {}).get("training", [])]

    def cells(family: str, precision: str, value: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        return {
            f"d_model {row['d_model']}, T {row['length']}, {row['vocab_size']} tokens": value(row)
            for row in rows
            if row["family"] == family and row["precision"] == precision
        }

    def fastest(row: dict[str, Any]) -> float:
        same = [peer for peer in row["peers"].values() if peer["mixed"] or row["precision"] == "fp32"]
        return min(peer["ratio"] for peer in same)

    for family, precision, limit in (
        *(
            (family, precision, limit)
            for family in (*DENSE, "gpt2")
            for precision, limit in (("fp32", 1.1), ("bf16", 1.2))
        ),
        *(("moe", precision, 1.5) for precision in ("fp32", "bf16")),
        *(("mamba2", precision, 3.0) for precision in ("fp32", "bf16")),
    ):
        if own := cells(family, precision, fastest):
            yield Goal(
                what=f"training step, {family}, {precision}: times the fastest peer", limit=limit, cells=own
            )
    for peer, limit in (("transformers", 100.0), ("mambapy", 3.0)):
        if own := cells("mamba", "fp32", lambda row, peer=peer: row["peers"][peer]["ratio"]):  # type: ignore[misc]
            yield Goal(what=f"training step, mamba, fp32: times {peer}", limit=limit, cells=own)
    for precision, limit in (("fp32", 0.8), ("bf16", 0.6)):
        own = cells("decoder", precision, lambda row: row["matmul_share"])
        own = {name: value for name, value in own.items() if name.startswith("d_model 512, T 512")}
        if own:
            what = f"decoder's step, {precision}: share of the rate of a matrix product"
            yield Goal(what=what, limit=limit, percent=True, cells=own)


def decoding_goals(found: dict[str, Any]) -> Iterator[Goal]:
    part = found.get("generation", {})
    rows = part.get("generation", [])
    for family in dict.fromkeys(row["family"] for row in rows):
        own = {f"{row['batch_size']} sequences": row["ratio"] for row in rows if row["family"] == family}
        yield Goal(what=f"greedy writing, {family}: times transformers", limit=3.0, cells=own)
    if part.get("bandwidth", {}).get("share") is not None:
        own = {"1 sequence": part["bandwidth"]["share"]}
        what = "decoding, 100 million parameters: share of the memory's bandwidth"
        yield Goal(what=what, limit=0.6, percent=True, cells=own)
    if "without_cache" in part:
        own = {"1 sequence": part["without_cache"]["ratio"]}
        yield Goal(what="decoding with a cache: times without, after 2,048 tokens", limit=10.0, cells=own)


def other_goals(found: dict[str, Any]) -> Iterator[Goal]:
    growth = found.get("growth", {})
    if growth:
        what = "training cost of state-space models: power of the length"
        yield Goal(what=what, limit=1.05, most=True, cells=growth["exponents"])
        what = "their decoding cost after 512 to 32,768 tokens: largest deviation"
        yield Goal(what=what, limit=0.05, most=True, percent=True, cells=growth["deviations"])
    shares = found.get("harness", {}).get("micro", {}).get("shares", {})
    for name, limit in (("harness", 0.02), ("with records", 0.01), ("checkpoint", 0.01)):
        if name in shares:
            what = {
                "harness": "harness over a bare loop",
                "with records": "logging",
                "checkpoint": "checkpoints",
            }
            own = {"scale=micro": shares[name]}
            yield Goal(what=what[name], limit=limit, most=True, percent=True, cells=own)
    if "speedup" in found.get("diffusion", {}):
        what = "masked diffusion, tokens a second at equal quality: blocks and cache over one token a pass"
        yield Goal(what=what, limit=8.0, cells={"1 sequence": found["diffusion"]["speedup"]})


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


def main() -> None:
    args = parse()
    begin = time.perf_counter()
    for number, name in enumerate(args.parts, 1):
        print(
            f"part {number} of {len(args.parts)}: {name}, {time.perf_counter() - begin:.0f} s so far",
            flush=True,
        )
        run(name, args.folder)
    files = {name: args.folder / f"{name}.json" for name in PARTS}
    found = {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}
    goals = [*training_goals(found), *decoding_goals(found), *other_goals(found)]
    page = Page(args.folder / "goals.md", args.folder / "goals.json")
    spent = time.perf_counter() - begin
    page.say(f"{machine_line()}; {len(args.parts)} parts in {spent / 60:.0f} minutes.")
    page.say(
        as_markdown(("what", "goal", "median (least to most)", "verdict"), [goal.row() for goal in goals])
    )
    page.note("goals", [{**asdict(goal), "met": goal.met} for goal in goals])
    draw(goals, args.folder / "goals.svg")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, default=HERE / "results")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"--folder {args.folder}: there is no such folder; make it first")
    return args


if __name__ == "__main__":
    main()
