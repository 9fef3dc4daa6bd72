"""The goals of the benchmarks, each with the values that a part measured. ``goals.py`` prints them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

OURS_COMPILED = "ours, compiled blocks"
"""Our model with compiled blocks, as ``peer_models`` names it."""
DENSE = ("decoder", "encoder", "encoder_decoder")
FAMILIES = (*DENSE, "gpt2", "moe", "mamba2")
"""Families with training comparisons in both precisions."""
LIMITS = {"moe": 1.2, "mamba2": 2.0}
"""Times the fastest peer, where the goal is not 1.1."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A goal with all its measurements."""

    what: str
    limit: float
    """At least this; at most this where ``most``."""
    most: bool = False
    percent: bool = False
    cells: dict[str, float]
    """The measured values, by the setting that each was measured at."""
    part: str
    """The part of the benchmark that measured it."""

    def __post_init__(self) -> None:
        assert self.cells, self.what

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.most else value >= self.limit

    @property
    def reached(self) -> int:
        """Number of measured values that reach the goal."""
        return sum(self.holds(value) for value in self.cells.values())

    @property
    def group(self) -> str:
        """Name without family and precision, for the summary."""
        subject, colon, measure = self.what.partition(": ")
        return subject.partition(", ")[0] + colon + measure

    @property
    def direction(self) -> str:
        return "at most" if self.most else "at least"

    @property
    def required(self) -> str:
        return f"{self.direction} {self.say(self.limit)}"

    @property
    def minimum(self) -> float:
        return min(self.cells.values())

    @property
    def median(self) -> float:
        return statistics.median(self.cells.values())

    @property
    def maximum(self) -> float:
        return max(self.cells.values())

    def say(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def training_goals(results: dict[str, Any]) -> Iterator[Goal]:
    """Yield training steps compared with the fastest peer, and the decoder's fraction of GEMM peak."""
    parts = {"dense": DENSE, "others": ("gpt2", "moe", "mamba2")}
    for part, families in parts.items():
        for family in families:
            for precision in ("fp32", "bf16"):
                if values := cells(results, part, family, precision, fastest_peer):
                    description = (
                        f"training step, {family}, {precision}: times the fastest peer, not compiled"
                    )
                    limit = LIMITS.get(family, 1.1)
                    yield Goal(what=description, limit=limit, cells=values, part=part)
    for peer, limit in (("transformers", 100.0), ("mambapy", 5.0)):
        value = partial(ratio_to, peer)
        if values := cells(results, "mamba", "mamba", "fp32", value):
            description = f"training step of Mamba, fp32: times {peer}"
            yield Goal(what=description, limit=limit, cells=values, part="mamba")
    for precision, limit in (("fp32", 0.75), ("bf16", 0.65)):
        values = cells(results, "dense", "decoder", precision, lambda row: row["matmul_share"])
        values = {name: value for name, value in values.items() if name.startswith("d_model 512, T 512")}
        if values:
            description = f"decoder's step, {precision}: fraction of GEMM peak"
            yield Goal(what=description, limit=limit, percent=True, cells=values, part="dense")


def compiled_goals(results: dict[str, Any]) -> Iterator[Goal]:
    """Yield steps compared with the fastest peer, compiled or not, and compiled with eager blocks."""
    for family in FAMILIES:
        for precision in ("fp32", "bf16"):
            if values := cells(results, "compiled", family, precision, fastest_peer):
                description = f"training step, {family}, {precision}: times the fastest peer, compiled or not"
                limit = LIMITS.get(family, 1.1)
                yield Goal(what=description, limit=limit, cells=values, part="compiled")
    values = {
        f"{family}, {precision}": value
        for family in FAMILIES
        for precision in ("fp32", "bf16")
        for value in cells(results, "compiled", family, precision, blocks_over_plain).values()
    }
    if values:
        description = "trainer.compile=blocks: times trainer.compile=none"
        yield Goal(what=description, limit=1.0, cells=values, part="compiled")


def attention_goals(results: dict[str, Any]) -> Iterator[Goal]:
    """Yield training by the C++ kernel where a model uses it, compared with PyTorch's attention."""
    for precision in ("fp32", "bf16"):
        values = {
            f"{row['mask']}, T {row['length']}": row["training"]
            for row in results.get("attention", {}).get("attention", [])
            if row["precision"] == precision and row["takes_training"]
        }
        if values:
            description = (
                f"attention, {precision}, forward and backward, where it runs in C++: times PyTorch's"
            )
            yield Goal(what=description, limit=1.2, cells=values, part="attention")


def kernel_goals(results: dict[str, Any]) -> Iterator[Goal]:
    """Yield every other C++ kernel in the sizes where a model uses it, compared with PyTorch."""
    rows = [row for row in results.get("kernels", {}).get("kernels", []) if row["kernel"] != "attention"]
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        values = {
            f"{row['size']}, {row['precision']}, {kind}": row[kind]["ratio"]
            for row in rows
            for kind in ("training", "inference")
            if row["kernel"] == kernel and row[kind]["used"]
        }
        if values:
            yield Goal(
                what=f"{kernel}, where it runs in C++: times PyTorch",
                limit=1.15,
                cells=values,
                part="kernels",
            )


def cells(
    results: dict[str, Any],
    part: str,
    family: str,
    precision: str,
    value: Callable[[dict[str, Any]], float],
) -> dict[str, float]:
    """Return a value of each row of a part, by its size."""
    return {
        f"d_model {row['d_model']}, T {row['length']}, {row['vocab_size']} tokens": value(row)
        for row in results.get(part, {}).get("training", [])
        if row["family"] == family and row["precision"] == precision
    }


def fastest_peer(row: dict[str, Any]) -> float:
    """Return the speed of ours as a multiple of the fastest model of others that does the same work."""
    same_work = {name: peer for name, peer in row["peers"].items() if name != OURS_COMPILED}
    return min(peer["ratio"] for peer in same_work.values() if peer["mixed"] or row["precision"] == "fp32")


def blocks_over_plain(row: dict[str, Any]) -> float:
    """Return the speed of compiled blocks as a multiple of plain ones; a ratio is of theirs to ours."""
    return 1 / float(row["peers"][OURS_COMPILED]["ratio"])


def ratio_to(peer: str, row: dict[str, Any]) -> float:
    return float(row["peers"][peer]["ratio"])


def decoding_goals(results: dict[str, Any]) -> Iterator[Goal]:
    part = results.get("generation", {})
    rows = part.get("generation", [])
    for family in dict.fromkeys(row["family"] for row in rows):
        values = {f"{row['batch_size']} sequences": row["ratio"] for row in rows if row["family"] == family}
        yield Goal(
            what=f"greedy decoding, {family}: times transformers", limit=2.5, cells=values, part="generation"
        )
    if part.get("bandwidth", {}).get("share") is not None:
        values = {"1 sequence": part["bandwidth"]["share"]}
        description = "decoding, 100 million parameters: fraction of memory bandwidth"
        yield Goal(what=description, limit=0.6, percent=True, cells=values, part="generation")
    if "without_cache" in part:
        values = {"1 sequence": part["without_cache"]["ratio"]}
        yield Goal(
            what="decoding with a cache: times without, after 2,048 tokens",
            limit=10.0,
            cells=values,
            part="generation",
        )


def other_goals(results: dict[str, Any]) -> Iterator[Goal]:
    growth = results.get("growth", {})
    if growth:
        description = "training cost of state-space models: scaling exponent of the length"
        yield Goal(what=description, limit=1.05, most=True, cells=growth["exponents"], part="growth")
        description = "decoding cost of state-space models after 512 to 32,768 tokens: largest deviation"
        deviations = growth["deviations"]
        yield Goal(what=description, limit=0.05, most=True, percent=True, cells=deviations, part="growth")
    shares = results.get("harness", {}).get("micro", {}).get("shares", {})
    for name, limit in (("harness", 0.02), ("with records", 0.01), ("checkpoint", 0.01)):
        if name in shares:
            description = {
                "harness": "harness over a bare loop",
                "with records": "logging",
                "checkpoint": "checkpoints",
            }
            values = {"scale=micro": shares[name]}
            yield Goal(
                what=description[name], limit=limit, most=True, percent=True, cells=values, part="harness"
            )
    if "speedup" in results.get("diffusion", {}):
        description = (
            "masked diffusion: tokens a second at equal quality, blocks and cache over one token a pass"
        )
        yield Goal(
            what=description,
            limit=8.0,
            cells={"1 sequence": results["diffusion"]["speedup"]},
            part="diffusion",
        )


def all_goals(results: dict[str, Any]) -> list[Goal]:
    kinds = (
        training_goals,
        compiled_goals,
        attention_goals,
        kernel_goals,
        decoding_goals,
        other_goals,
    )
    return [goal for kind in kinds for goal in kind(results)]
