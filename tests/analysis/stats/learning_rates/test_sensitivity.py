from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from archbench.analysis.load.study import load_study
from archbench.analysis.stats.learning_rates.sensitivity import (
    rate_notes,
    rate_optima,
    rate_runs,
    rate_warnings,
)

WriteRun = Callable[..., Path]


def write_rates(write_run: WriteRun, scores: dict[float, float | None], seed: int = 0) -> None:
    """A decoder at each rate; None diverges."""
    for rate, score in scores.items():
        fate = {"status": "diverged", "message": "loss is nan"} if score is None else {}
        folder = write_run("decoder", seed, score, digest=f"{rate:g}".replace("-", ""), **fate)
        (folder / "config.yaml").write_text(f"optimizer:\n  learning_rate: {rate}\n")


def test_an_optimum_that_is_not_bracketed_is_said(write_run: WriteRun, tmp_path: Path) -> None:
    write_rates(write_run, {0.001: 2.6, 0.003: 2.4, 0.01: 2.2})
    frame = load_study(tmp_path / "runs", "compare")
    [note] = rate_notes(rate_optima(rate_runs(frame)))
    # Validations end at score (1 + 1/50).
    assert f"decoder is best at 0.01, {2.2 * 1.02:.4f}" in note
    assert f"is {0.2 * 1.02:.4f} worse; diverged: 0 of 3 runs" in note
    edge, chosen_on_test = rate_warnings(frame)
    assert "learning rate of decoder not bracketed, the best (0.01) is at the upper edge" in edge
    assert "decoder stand at several learning rates" in chosen_on_test


def test_a_rate_that_diverged_under_a_seed_is_not_the_best(write_run: WriteRun, tmp_path: Path) -> None:
    write_rates(write_run, {0.001: 2.6, 0.003: 2.4, 0.01: 2.2}, seed=0)
    write_rates(write_run, {0.001: 2.6, 0.003: 2.4, 0.01: None}, seed=1)
    frame = load_study(tmp_path / "runs", "compare")
    best = rate_optima(rate_runs(frame)).iloc[0]
    assert (best["learning_rate"], best["edge"], best["diverged"]) == (0.003, "", 1)
    assert not any("not bracketed" in warning for warning in rate_warnings(frame))


def test_two_rates_are_no_curve_and_one_is_no_choice(write_run: WriteRun, tmp_path: Path) -> None:
    write_rates(write_run, {0.001: 2.4})
    assert rate_warnings(load_study(tmp_path / "runs", "compare")) == []
    write_rates(write_run, {0.003: 2.4})
    frame = load_study(tmp_path / "runs", "compare")
    assert rate_runs(frame).empty
    [warning] = rate_warnings(frame)
    assert "archbench rates chooses on the validation split" in warning
