"""Tables of fitted scaling laws, with bootstrap bands and what the fits were checked against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
import rich.box
from rich.table import Table

from analysis.scaling.isoflop import isoflop_exponent, isoflop_profiles
from analysis.scaling.laws import (
    Law,
    band,
    bootstrap_laws,
    compute_ratio,
    drop_highest,
    fit_law,
    held_out,
    objective,
)

PUBLISHED = {
    "Besiroglu et al. 2024": Law(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
    "Hoffmann et al. 2022": Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
}
"""Constants printed for approach 3 (arXiv 2404.10102 and 2203.15556), rounded as printed."""


CONSTANTS: Mapping[str, Callable[[Law], float]] = {
    "E": lambda law: law.E,
    "A": lambda law: law.A,
    "B": lambda law: law.B,
    "alpha": lambda law: law.alpha,
    "beta": lambda law: law.beta,
    "a in N* ~ C^a": lambda law: law.exponent,
}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What is known about one set of points."""

    points: pd.DataFrame
    law: Law
    samples: list[Law]
    """Of bootstrap samples of the points."""

    def show(self, value: Callable[[Law], float]) -> str:
        """A number of the law with its bootstrap band."""
        low, high = band([value(sample) for sample in self.samples])
        return f"{text(value(self.law))} [{text(low)}, {text(high)}]"

    def held_out_text(self) -> str:
        """The mean size of the prediction error for the largest budget, which this fit was not shown."""
        try:
            error = held_out(self.points)["error"]
        except ValueError:
            return "too few points"
        return f"{error.abs().mean():.2%} ({len(error)})"


def fit(points: pd.DataFrame, *, drop: int, bootstraps: int, seed: int) -> Fit:
    """The law of the points without the ``drop`` highest losses. Raises ValueError for too few."""
    points = drop_highest(points, drop)
    return Fit(points=points, law=fit_law(points), samples=bootstrap_laws(points, bootstraps, seed))


def points_table(name: str, found: Fit) -> Table:
    """The constants of one fit beside the published ones."""
    title = f"{name}: {len(found.points)} points, loss = E + A N^-alpha + B D^-beta"
    table = Table(box=rich.box.SIMPLE, title=title, title_justify="left")
    for head in ("", "fit [95% bootstrap]", *PUBLISHED):
        table.add_column(head, justify="left" if not head else "right")
    for label, value in CONSTANTS.items():
        table.add_row(label, found.show(value), *(text(value(law)) for law in PUBLISHED.values()))
    objectives = [objective(law, found.points) for law in (found.law, *PUBLISHED.values())]
    table.add_row("sum of Huber on these points", *(f"{value:.7f}" for value in objectives))
    return table


def checks(found: Fit) -> list[str]:
    """The fit held against what it was not made from, and what it says about budgets, in words."""
    profiles = isoflop_profiles(found.points)
    lost = int(profiles["edge"].sum())
    lines = [
        f"Held-out largest budget: mean error {found.held_out_text()}.",
        f"IsoFLOP profiles, a cross-check: a = {text(isoflop_exponent(profiles))} "
        f"from {len(profiles) - lost} of {len(profiles)} budgets "
        "(in the others the best size is not between those tried).",
    ]
    if not found.law.bounded:
        lines.append("A constant is zero or an exponent at its bound: these points do not determine the law.")
    largest = found.points["flops"].max()
    for flops in (largest, 10 * largest):
        size, tokens = found.law.optimum(flops)
        lines.append(
            f"At {flops:.3g} FLOPs: N = {size:.3g}, D = {tokens:.3g}, loss {found.law.frontier(flops):.4f}."
        )
    return lines


def study_table(title: str, fits: Mapping[str, Fit], baseline: str) -> Table:
    """A row for each arm, and how many times fewer FLOPs it needs than the baseline.

    The ratio is at the loss that every arm reaches with the largest of its budgets spent at its optimum.
    """
    target = max(found.law.frontier(found.points["flops"].max()) for found in fits.values())
    table = Table(box=rich.box.SIMPLE, title=title, title_justify="left")
    last = f"times fewer FLOPs than {baseline} to {target:.3f}"
    for head in ("model", "points", "E", "alpha", "beta", "a in N* ~ C^a", "isoFLOP a", "held out (n)", last):
        table.add_column(head, justify="left" if head == "model" else "right")
    for name, found in fits.items():
        table.add_row(
            name, str(len(found.points)),
            *(found.show(CONSTANTS[key]) for key in ("E", "alpha", "beta", "a in N* ~ C^a")),
            text(isoflop_exponent(isoflop_profiles(found.points))), found.held_out_text(),
            "1" if name == baseline else ratio_text(found, fits[baseline], target),
        )  # fmt: skip
    return table


def ratio_text(found: Fit, other: Fit, target: float) -> str:
    """How many times fewer FLOPs than ``other``, with the band over both fits' bootstrap samples."""
    pairs = zip(found.samples, other.samples, strict=True)
    low, high = band([compute_ratio(law, other_law, target) for law, other_law in pairs])
    return f"{text(compute_ratio(found.law, other.law, target))} [{text(low)}, {text(high)}]"


def text(value: float) -> str:
    """Five digits; a dash where there is no number."""
    return f"{value:.5g}" if math.isfinite(value) else "-"
