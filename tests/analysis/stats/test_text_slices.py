"""Gains by slice of a text, from run folders whose slices are known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.text_slices import slice_gains
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.text_slices import difference_error, run_slices, slice_sentences, slice_table
from archbench.analysis.stats.verdicts.verdict import verdicts
from archbench.analysis.tables.slices import recall_grid, slice_grids
from archbench.experiments.tasks.metrics import ratio_standard_error
from tests.results import write_result

TOKENS = {"new": [30.0, 20.0, 40.0], "repeats": [4.0, 2.0, 4.0]}
"""Tokens of each document in two slices, of one byte each."""
BITS = {
    "decoder": {"new": [90.0, 50.0, 130.0], "repeats": [8.0, 5.0, 7.0]},
    "mamba": {"new": [80.0, 46.0, 117.0], "repeats": [8.5, 5.0, 8.5]},
    "s4": {"new": [90.5, 50.5, 129.0], "repeats": [6.0, 3.0, 6.0]},
}
NOISE = (-0.02, 0.0, 0.03)
"""Deviation of each seed's bits from the mean, as a part of them."""


def slices_of(bits: dict[str, list[float]], factor: float) -> list[dict[str, Any]]:
    found = []
    for by, names in (("recall", ("new", "repeats")), ("kind", ("repeats", "new"))):
        for name in names:
            own = [factor * b for b in bits[name]]
            total = {"bits": sum(own), "tokens": sum(TOKENS[name]), "bytes": sum(TOKENS[name])}
            clusters = [list(pair) for pair in zip(own, TOKENS[name], strict=True)]
            found.append({"by": by, "name": name, **total, "cluster_totals": clusters})
    return found


@pytest.fixture
def sliced(write_run: Any, tmp_path: Path) -> Any:
    """A study with the given models of a text."""

    def write(models: Sequence[str] = ("decoder", "mamba", "s4"), seeds: int = 3) -> pd.DataFrame:
        for model in models:
            for seed in range(seeds):
                factor = 1 + NOISE[seed]
                own = slices_of(BITS[model], factor)
                score = sum(s["bits"] for s in own[:2]) / 100
                folder = write_run(model, seed, score)
                record = json.loads((folder / "result.json").read_text())
                record["metrics"][0]["slices"] = own
                write_result(folder, record)
        return load_study(tmp_path / "runs", "compare").assign(baseline="decoder")

    return write


def cell(table: pd.DataFrame, arm: str, name: str, by: str = "recall") -> pd.Series:
    found = table[(table["arm"] == arm) & (table["slice"] == name) & (table["by"] == by)]
    assert len(found) == 1
    return found.iloc[0]


def test_a_gain_is_in_bits_per_token_and_its_parts_add_up(sliced: Any) -> None:
    frame = sliced()
    table = slice_table(frame)
    mean = 1 + np.mean(NOISE)
    row = cell(table, "mamba", "new")
    assert row["gain"] == pytest.approx(mean * (270 - 243) / 90)
    assert row["share"] == pytest.approx(0.9)
    assert row["part"] == pytest.approx(mean * (270 - 243) / 100)
    assert cell(table, "mamba", "repeats")["part"] == pytest.approx(mean * (20 - 22) / 100)
    scores = frame.groupby("arm")["score"].mean()
    for by in ("recall", "kind"):
        own = table[(table["arm"] == "mamba") & (table["by"] == by)]
        assert own["part"].sum() == pytest.approx(scores["decoder"] - scores["mamba"])
        assert own["fraction"].sum() == pytest.approx(1)


def test_the_interval_is_that_of_the_verdicts(sliced: Any) -> None:
    frame = sliced()
    own = run_slices(frame).query("by == 'recall' and slice == 'repeats'")
    scores = {arm: dict(zip(r["seed"], r["score"], strict=True)) for arm, r in own.groupby("arm")}
    for verdict in verdicts(scores, "lower", baseline="decoder"):
        row = cell(slice_table(frame), verdict.model, "repeats")
        assert (row["low"], row["high"]) == pytest.approx((verdict.low, verdict.high))
        assert row["verdict"] == verdict.verdict
    assert cell(slice_table(frame), "s4", "repeats")["verdict"] == "better"


def test_without_a_declared_baseline_the_best_model_is_it_under_the_correction_of_all_pairs(
    sliced: Any,
) -> None:
    frame = sliced().assign(baseline=None)
    row = cell(slice_table(frame), "decoder", "new")
    assert row["baseline"] == "mamba"
    own = run_slices(frame).query("by == 'recall' and slice == 'new'")
    scores = {arm: dict(zip(r["seed"], r["score"], strict=True)) for arm, r in own.groupby("arm")}
    pair = next(v for v in verdicts(scores, "lower") if {v.model, v.other} == {"mamba", "decoder"})
    assert (row["low"], row["high"]) == pytest.approx((-pair.high, -pair.low))


def test_the_error_over_documents_is_of_the_difference(sliced: Any) -> None:
    """Both models read the same documents: the error is that of the differences over the tokens."""
    row = cell(slice_table(sliced()), "mamba", "new")
    mean = 1 + np.mean(NOISE)
    less = mean * (np.array(BITS["decoder"]["new"]) - BITS["mamba"]["new"])
    expected, _ = ratio_standard_error(less, np.array(TOKENS["new"]), np.arange(3))
    assert row["item_se"] == pytest.approx(expected)


def test_a_slice_of_one_document_has_no_error_over_documents(sliced: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(TOKENS, "repeats", [10.0, 0.0, 0.0])
    for bits in BITS.values():
        monkeypatch.setitem(bits, "repeats", [sum(bits["repeats"]), 0.0, 0.0])
    assert math.isnan(cell(slice_table(sliced()), "mamba", "repeats")["item_se"])


def test_runs_on_other_documents_have_no_error_over_documents(sliced: Any) -> None:
    runs = run_slices(sliced(["decoder", "mamba"]))
    decoder, mamba = (runs[(runs["arm"] == arm) & (runs["slice"] == "new")] for arm in ("decoder", "mamba"))
    fewer = mamba.assign(clusters=[clusters[:2] for clusters in mamba["clusters"]])
    assert math.isfinite(difference_error(decoder, mamba))
    assert math.isnan(difference_error(decoder, fewer))


def test_two_seeds_have_gains_and_no_verdict(sliced: Any) -> None:
    row = cell(slice_table(sliced(seeds=2)), "mamba", "new")
    assert row["gain"] > 0
    assert (row["verdict"], math.isnan(row["low"])) == ("undecided", True)


def test_the_sentence_says_where_the_gain_comes_from(sliced: Any) -> None:
    (sentence,) = slice_sentences(slice_table(sliced()))
    assert sentence.startswith(
        "mamba's gain over decoder of 0.251 bits per byte is 0.271 in the 90% of the text "
    )
    assert "that new (0.301 ± " in sentence
    assert "-0.020 in the 10% of the text that repeats" in sentence
    assert "most of it is in 'new': 0.271, in 90% of the bytes" in sentence


def test_the_tables_show_gains_and_mark_verdicts(sliced: Any) -> None:
    table = slice_table(sliced())
    grid = recall_grid(table)
    assert grid is not None
    name, head, body, note = grid.title, grid.head, grid.rows, grid.note
    assert name == "Recall from the window, text, nano"
    assert head == ["model", "new (90%)", "gain", "repeats (10%)", "gain"]
    rows = {row[0]: row[1:] for row in body}
    assert rows["decoder"] == ["3.010", "baseline", "2.007", "baseline"]
    assert rows["s4"][3].startswith("+0.502 ± ")
    assert rows["s4"][3].endswith("*")
    assert note.startswith("mamba's gain")
    (grid,) = slice_grids(table)
    name, head, body = grid.title, grid.head, grid.rows
    assert (name, head) == (
        "Slices of the text, text, nano, exact likelihoods",
        ["by", "slice", "bytes", "decoder, bits per token", "mamba", "s4"],
    )
    assert [row[:3] for row in body] == [
        ["recall", "new", "90.0%"], ["recall", "repeats", "10.0%"],
        ["kind", "repeats", "10.0%"], ["kind", "new", "90.0%"],
    ]  # fmt: skip


def test_the_figure_has_a_point_for_each_slice_of_each_model_but_the_baseline(sliced: Any) -> None:
    frame = sliced()
    figure = slice_gains(Comparison(frame))
    assert figure is not None
    assert {trace.name: list(trace.customdata) for trace in figure.data} == {
        "mamba": ["repeats", "new"], "s4": ["repeats", "new"]
    }  # fmt: skip


def test_a_study_without_slices_has_none(study: Path) -> None:
    frame = load_study(study, "compare")
    table = slice_table(frame)
    assert table.empty
    assert recall_grid(table) is None
    assert slice_gains(Comparison(frame)) is None
    assert list(slice_grids(table)) == []


def test_a_model_with_a_run_that_failed_is_left_out(sliced: Any, write_run: Any, tmp_path: Path) -> None:
    sliced(("decoder", "mamba"))
    write_run("mamba", 7, None, status="diverged", message="loss is nan")
    assert set(slice_table(load_study(tmp_path / "runs", "compare"))["arm"]) == {"decoder"}
