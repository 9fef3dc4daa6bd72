"""Published numbers that take no training, where the answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from archbench.analysis.scaling.laws import Law


def test_the_refit_leaves_out_the_highest_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import untrained

    loss = np.linspace(2, 4, 12)
    points = pd.DataFrame({"Model Size": 1e8, "Training FLOP": 6e17, "loss": loss[::-1]})
    points.to_csv(tmp_path / "points.csv", index=False)

    def fit(kept: pd.DataFrame) -> Law:
        assert sorted(kept["loss"]) == pytest.approx(loss[:7])
        assert set(kept["tokens"]) == {1e9}
        return Law(E=1.0, A=2.0, B=3.0, alpha=0.4, beta=0.5)

    monkeypatch.setattr(untrained, "fit_law", fit)
    found = dict(untrained.refit(tmp_path / "points.csv"))
    assert found == {"E": 1.0, "A": 2.0, "B": 3.0, "alpha": 0.4, "beta": 0.5}


def test_support_vectors_read_the_digits_of_the_task() -> None:
    from untrained import support_vectors

    ((name, accuracy),) = support_vectors()
    assert name == "support vector machine"
    # The published accuracy, with less training data, is 0.97; labels that do not belong would give 0.1.
    assert 0.95 < accuracy < 1
