"""The table of compute multipliers, from points of several sizes and seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich.console import Console

from archbench.analysis.scaling.isoflop import best_sizes
from archbench.analysis.scaling.laws import Law
from archbench.analysis.scaling.tables import Fit, multiplier_table

LAW = Law(E=1, A=1, B=1, alpha=1, beta=1)


def points(shift: float, seeds: int) -> Fit:
    """Losses that fall by 1 for each decade of FLOPs; the second size is worse by 0.3 everywhere."""
    generator = np.random.default_rng(0)
    rows = [
        {
            "size": size,
            "tokens": 1.0,
            "flops": flops * (1 + 0.01 * size),
            "run": f"{size} {seed}",
            "seed": seed,
        }
        | {"loss": 20 - np.log10(flops) - shift + 0.3 * (size - 1) + 0.001 * generator.standard_normal()}
        for flops in (1e10, 1e11, 1e12, 1e13)
        for size in (1, 2)
        for seed in range(seeds)
    ]
    return Fit(points=pd.DataFrame(rows), law=LAW, samples=[])


def printed(seeds: int) -> str:
    console = Console(width=140)
    with console.capture() as capture:
        console.print(
            multiplier_table("", {"decoder": points(0, seeds), "s4": points(0.3, seeds)}, "decoder")
        )
    return capture.get()


def test_the_best_size_of_each_budget_is_compared() -> None:
    curve = best_sizes(points(0, 3).points)
    assert [len(scores) for scores in curve.scores] == [3, 3, 3, 3]
    assert np.allclose(curve.means_K, [10, 9, 8, 7], atol=0.01)


def test_each_budget_has_a_multiplier_and_the_model_a_verdict() -> None:
    """A loss lower by 0.3 is worth 10^0.3 = 2 times the FLOPs."""
    lines = printed(3).splitlines()
    assert "ahead; 1.00x per decade" in lines[-2]
    assert "≥ 1" in lines[-2]
    assert " 2 [1.9" in lines[-3] or " 1.99 [1.9" in lines[-3]
    assert not any(line.strip().startswith("decoder") for line in lines)


def test_one_seed_gives_values_without_intervals() -> None:
    lines = printed(1).splitlines()
    assert "[" not in lines[-3]
    assert "undecided" in lines[-2]
