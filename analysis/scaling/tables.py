"""Tables of fitted scaling laws, with bootstrap bands and checks of the fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
import rich.box
from rich.table import Table

from archbench.analysis.scaling.isoflop import best_sizes, isoflop_exponent, isoflop_profiles
from archbench.analysis.scaling.laws import (
    Law,
    band,
    bootstrap_laws,
    compute_ratio,
    drop_highest,
    fit_law,
    held_out,
    objective,
)
from archbench.analysis.stats.compute.multiplier import ComputeComparison, compare_compute
from archbench.analysis.tables.format import multiplier

PUBLISHED = {
    "Besiroglu et al. 2024": Law(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
    "Hoffmann et al. 2022": Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
}
"""Constants printed for approach 3 (arXiv 2404.10102 and 2203.15556), rounded as printed."""
FITTED = 4
"""Sizes, and budgets, of a backbone from which a scaling law is fitted."""
BOOTSTRAPS = 100
"""Samples for the bands of the report; ``archbench scaling`` takes more."""


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
    """A law fitted to one set of points."""

    points: pd.DataFrame
    law: Law
    samples: list[Law]
    """Laws of bootstrap samples of the points."""

    def show(self, value: Callable[[Law], float]) -> str:
        """Return a value of the law with its bootstrap band."""
        low, high = band([value(sample) for sample in self.samples])
        return f"{text(value(self.law))} [{text(low)}, {text(high)}]"

    def held_out_text(self) -> str:
        """Return the mean absolute relative error of a fit to smaller budgets at the largest budget."""
        try:
            error = held_out(self.points)["error"]
        except ValueError:
            return "too few points"
        return f"{error.abs().mean():.2%} ({len(error)})"


def fit(points: pd.DataFrame, *, drop: int, bootstraps: int, seed: int) -> Fit:
    """Return the law of the points without the ``drop`` highest losses. Raises ValueError for too few."""
    points = drop_highest(points, drop)
    return Fit(points=points, law=fit_law(points), samples=bootstrap_laws(points, bootstraps, seed))


def scaling_fits(points: pd.DataFrame) -> dict[str, Fit]:
    """Return the laws of the lines with enough sizes and budgets, of the first task that has any.

    Args:
        points: from ``analysis.scaling.points.study_points``.
    """
    for _, group in points.groupby(["task", "likelihood"], dropna=False, sort=True):
        fits = {}
        for line, of_line in group.groupby("line", sort=True):
            if of_line["size"].nunique() >= FITTED and of_line["tokens"].nunique() >= FITTED:
                fits[str(line)] = fit(of_line, drop=0, bootstraps=BOOTSTRAPS, seed=0)
        if fits:
            return fits
    return {}


def points_table(name: str, result: Fit) -> Table:
    """Return the constants of one fit next to the published ones."""
    title = f"{name}: {len(result.points)} points, loss = E + A N^-alpha + B D^-beta"
    table = Table(box=rich.box.SIMPLE, title=title)
    for head in ("", "fit [95% bootstrap]", *PUBLISHED):
        table.add_column(head, justify="left" if not head else "right")
    for label, value in CONSTANTS.items():
        table.add_row(label, result.show(value), *(text(value(law)) for law in PUBLISHED.values()))
    objectives = [objective(law, result.points) for law in (result.law, *PUBLISHED.values())]
    table.add_row("sum of Huber on these points", *(f"{value:.7f}" for value in objectives))
    return table


def checks(result: Fit) -> list[str]:
    """Return sentences with the held-out error, the isoFLOP cross-check, and the optima for two budgets."""
    profiles = isoflop_profiles(result.points)
    unbracketed = int(profiles["edge"].sum())
    lines = [
        f"Held-out largest budget: mean error {result.held_out_text()}.",
        f"IsoFLOP profiles, a cross-check: a = {text(isoflop_exponent(profiles))} "
        f"from {len(profiles) - unbracketed} of {len(profiles)} budgets "
        "(in the others the best size is not between those tried).",
    ]
    if not result.law.bounded:
        lines.append("A constant is zero or an exponent at its bound: these points do not determine the law.")
    largest = result.points["flops"].max()
    for flops in (largest, 10 * largest):
        size, tokens = result.law.optimum(flops)
        lines.append(
            f"At {flops:.3g} FLOPs: N = {size:.3g}, D = {tokens:.3g}, loss {result.law.frontier(flops):.4f}."
        )
    return lines


def study_table(title: str, fits: Mapping[str, Fit], baseline: str) -> Table:
    """Return a row for each arm, with the ratio of the baseline's FLOPs to the arm's.

    The ratio is computed at the loss that every arm reaches at the optimum of its largest budget.
    """
    target = max(result.law.frontier(result.points["flops"].max()) for result in fits.values())
    table = Table(box=rich.box.SIMPLE, title=title)
    ratio = f"times fewer FLOPs than {baseline} to {target:.3f}"
    constants = ("E", "alpha", "beta", "a in N* ~ C^a")
    for head in ("model", "points", *constants, "isoFLOP a", "held out (n)", ratio):
        table.add_column(head, justify="left" if head == "model" else "right")
    for name, result in fits.items():
        table.add_row(
            name, str(len(result.points)),
            *(result.show(CONSTANTS[key]) for key in constants),
            text(isoflop_exponent(isoflop_profiles(result.points))), result.held_out_text(),
            "1" if name == baseline else ratio_text(result, fits[baseline], target),
        )  # fmt: skip
    return table


def ratio_text(result: Fit, reference: Fit, target: float) -> str:
    """Return how many times fewer FLOPs than ``reference``, with the band over both fits' samples."""
    pairs = zip(result.samples, reference.samples, strict=True)
    low, high = band([compute_ratio(law, reference_law, target) for law, reference_law in pairs])
    return f"{text(compute_ratio(result.law, reference.law, target))} [{text(low)}, {text(high)}]"


def multiplier_table(title: str, fits: Mapping[str, Fit], baseline: str) -> Table:
    """Return the compute multipliers of each model over the baseline, at the best size of each budget."""
    curves = {name: best_sizes(result.points) for name, result in fits.items()}
    others = [name for name in fits if name != baseline]
    confidence = 1 - 0.05 / max(1, len(others))
    table = Table(box=rich.box.SIMPLE, title=title)
    for head in (
        "model",
        "FLOPs",
        "loss",
        f"FLOPs that {baseline} needs for it, as a multiple",
        "over all budgets",
    ):
        table.add_column(head, justify="left" if head == "model" else "right")
    for name in others:
        comparison = compare_compute(curves[name], curves[baseline], confidence=confidence)
        for row, m in enumerate(comparison.multipliers):
            loss, last = curves[name].means_K[row], row == len(comparison.multipliers) - 1
            table.add_row(
                name if row == 0 else "", f"{m.flops:.3g}", text(loss),
                multiplier(m.value, m.bound, m.low, m.high), verdict_text(comparison) if last else "",
            )  # fmt: skip
    return table


def verdict_text(comparison: ComputeComparison) -> str:
    """Return the verdict of all budgets, with the budget of a crossing and the slope of the multiplier."""
    verdict = comparison.verdict
    if verdict == "crosses" and math.isfinite(comparison.crossing):
        verdict = f"crosses at about {comparison.crossing:.2g} FLOPs"
    return verdict if math.isnan(comparison.slope) else f"{verdict}; {10**comparison.slope:.2f}x per decade"


def text(value: float) -> str:
    """Return five digits; a dash for NaN and infinity."""
    return f"{value:.5g}" if math.isfinite(value) else "-"
