"""The paired bootstrap over documents, by itself and in the verdicts of a study."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.verdicts.documents import document_interval, document_totals
from archbench.analysis.stats.verdicts.pair_errors import Array
from tests.results import write_result

WriteRun = Callable[..., Path]


def texts(rng: np.random.Generator, documents: int) -> tuple[Array, Array]:
    """Return the bytes of documents, and the bits of a model for them, which differ much."""
    bytes_G = rng.lognormal(7, 0.7, documents)
    return bytes_G, bytes_G * rng.normal(2.5, 0.3, documents)


def test_documents_are_drawn_for_both_models_together() -> None:
    rng = np.random.default_rng(0)
    bytes_G, bits_G = texts(rng, 200)
    gain_G = bytes_G * rng.normal(0.02, 0.03, 200)  # far below the variation between documents
    better, worse = (np.stack([bits, bytes_G], axis=1) for bits in (bits_G - gain_G, bits_G))
    low, high = document_interval(better, worse)
    assert 0 < low < gain_G.sum() / bytes_G.sum() < high
    # The linearised standard error of the difference of two ratios.
    residual_G = (gain_G - gain_G.sum() / bytes_G.sum() * bytes_G) / bytes_G.sum()
    error = math.sqrt((residual_G**2).sum() * 200 / 199)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert document_interval(worse, better) == pytest.approx((-high, -low), abs=error / 5)


def test_at_most_6_percent_of_equal_models_differ_over_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archbench.analysis.stats.verdicts.documents.RESAMPLES", 400)
    rng = np.random.default_rng(0)
    wrong, draws, documents = 0, 300, 100
    for _ in range(draws):
        bytes_G, bits_G = texts(rng, documents)
        other_G = bits_G + bytes_G * rng.normal(0, 0.1, documents)
        low, high = document_interval(
            np.stack([bits_G, bytes_G], axis=1), np.stack([other_G, bytes_G], axis=1)
        )
        wrong += low > 0 or high < 0
    assert wrong / draws < 0.06 + 3 * (0.06 * 0.94 / draws) ** 0.5


def study(write_run: WriteRun, runs: Path, gains: list[float]) -> pd.DataFrame:
    """Return a study under the protocol: in each document, mamba has this many bits per byte fewer."""
    for seed in range(5):
        for backbone, factor in (("decoder", 0), ("mamba", 1)):
            totals = [[100 * (2.5 - factor * gain + seed / 1000), 100.0] for gain in gains]
            score = sum(bits for bits, _ in totals) / (100 * len(gains))
            folder = write_run(backbone, seed, score)
            record = json.loads((folder / "result.json").read_text())
            record["metrics"][0]["cluster_totals"] = totals
            write_result(folder, record)
    return load_study(runs, "compare").assign(protocol="1.0")


def verdict(frame: pd.DataFrame) -> list[object]:
    [pair] = Comparison(frame).pairs.to_dict("records")
    return [pair["model"], pair["verdict"], pair["separated"], pair["reason"]]


def test_a_verdict_on_a_text_holds_for_other_documents(write_run: WriteRun, tmp_path: Path) -> None:
    frame = study(write_run, tmp_path / "runs", [0.1, 0.12, 0.08, 0.11] * 5)
    assert document_totals(frame)["decoder"] == pytest.approx(np.array([[250.2, 100.0]] * 20))
    assert verdict(frame) == ["mamba", "better", True, ""]
    assert verdict(frame.assign(documents=None)) == ["mamba", "better", True, ""]


def test_a_lead_in_one_document_is_no_verdict(write_run: WriteRun, tmp_path: Path) -> None:
    frame = study(write_run, tmp_path / "runs", [2.0, *[-0.01] * 19])
    assert verdict(frame) == ["mamba", "undecided", False, "depends on the documents"]
    assert verdict(frame.assign(documents=None)) == ["mamba", "better", True, ""]


def test_models_with_scores_of_other_documents_have_no_verdict(write_run: WriteRun, tmp_path: Path) -> None:
    frame = study(write_run, tmp_path / "runs", [0.1] * 20)
    cut = frame["documents"].map(lambda text: json.dumps(json.loads(text)[:-1]))
    frame = frame.assign(documents=frame["documents"].where(frame["arm"] == "decoder", cut))
    assert verdict(frame) == ["mamba", "undecided", False, "no scores of documents"]
    assert verdict(frame.assign(documents=None)) == ["mamba", "better", True, ""]  # of a held-out variant
