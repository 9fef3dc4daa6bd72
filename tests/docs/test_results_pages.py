"""What the pages of results say is what the frames beside them hold."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from archbench.analysis import dataset
from archbench.analysis.comparison import Comparison
from archbench.analysis.scaling.tables import fit
from tests import ROOT
from tests.docs import renew_tables

CPU_TRACK = ROOT / "conf" / "track" / "cpu.parquet"

RESULTS = ROOT / "docs" / "results"


@pytest.mark.parametrize("page", sorted(renew_tables.PAGES))
def test_quoted_tables_are_those_of_the_frame(page: str) -> None:
    name, level = renew_tables.PAGES[page]
    assert (renew_tables.frame(name)["status"] == "complete").all()
    remedy = "run python -m tests.docs.renew_tables"
    assert renew_tables.quoted(RESULTS / page) == renew_tables.page_block(name, level), remedy


def test_the_main_comparison_is_that_of_its_frame() -> None:
    frame = renew_tables.short_runs()
    assert (frame["status"] == "complete").all()
    assert (RESULTS / "compare.md").read_text() == renew_tables.scores_block(Comparison(frame))
    kept = pd.read_csv(RESULTS / "compare_pairs.csv")
    found = Comparison(frame).pairs
    assert kept["verdict"].tolist() == found["verdict"].tolist()
    assert kept["difference"].to_numpy() == pytest.approx(found["difference"].to_numpy())


def test_what_make_compare_prints_is_that_of_its_frame() -> None:
    frame = renew_tables.frame("main")
    assert len(frame) == 18
    assert (frame["status"] == "complete").all()
    page = RESULTS / "main_comparison.md"
    assert renew_tables.quoted(page, "main") == renew_tables.compute_block(frame)


def test_text_over_compute_is_that_of_its_frame() -> None:
    frame = renew_tables.frame("laptop")
    assert len(frame) == 45
    assert (frame["status"] == "complete").all()
    assert renew_tables.quoted(RESULTS / "main_comparison.md") == renew_tables.compute_block(
        renew_tables.with_measured_speeds(frame)
    )
    assert renew_tables.quoted(RESULTS / "text.md", "models") == renew_tables.models_block()
    kept = pd.read_csv(RESULTS / "laptop.csv")
    found = renew_tables.compute_multipliers(frame)
    assert kept["multiplier"].to_numpy() == pytest.approx(found["multiplier"].to_numpy(), nan_ok=True)


def test_the_dataset_describes_the_frames() -> None:
    described = dataset.read_dataset(dataset.DatasetConfig(folder=str(RESULTS)))
    kept = json.loads((RESULTS / "croissant.json").read_text())
    assert kept == dataset.croissant(described.frames), "run python -m tests.docs.renew_tables"
    assert (RESULTS / "README.md").read_text() == dataset.card(described.frames)


@pytest.mark.parametrize(
    "path", [*sorted(renew_tables.RESULTS.glob("*.parquet")), CPU_TRACK], ids=lambda p: p.stem
)
def test_runs_name_no_folder_of_a_machine(path: Path) -> None:
    runs = pd.read_parquet(path)
    for column in runs.columns.intersection(["path", "command"]):
        absolute = runs[column].astype(str).str.contains(r"(?:^|[ =\[,'])/\w")
        assert not absolute.any(), runs[column][absolute].iloc[0]


def test_the_tables_of_canon_layers_are_those_of_the_frame() -> None:
    frame = renew_tables.frame("canon")
    assert (frame["status"] == "complete").all()
    assert len(frame) == 84
    assert renew_tables.quoted(renew_tables.CANON) == renew_tables.canon_block(frame)


def test_the_capacities_are_those_of_the_frame() -> None:
    assert (renew_tables.frame("capacity")["status"] == "complete").all()
    assert renew_tables.quoted(RESULTS / "capacity.md") == renew_tables.capacity_block()


def test_text_over_compute_is_of_the_laptop_track_and_the_larger_budget() -> None:
    runs = renew_tables.text_runs()
    assert (runs["status"] == "complete").all()
    assert runs["fingerprint"].nunique() == 1
    assert renew_tables.quoted(RESULTS / "text.md") == renew_tables.cpu_text_block()
    kept = pd.read_csv(RESULTS / "text.csv", dtype={"bound": str, "time_bound": str}).fillna(
        {"bound": "", "time_bound": ""}
    )
    pd.testing.assert_frame_equal(kept, renew_tables.compute_multipliers(runs), check_dtype=False, rtol=1e-6)


def test_the_laws_of_the_ladder_are_those_of_its_points() -> None:
    points = pd.read_parquet(RESULTS / "ladder.parquet")
    page = (RESULTS.parent / "how-to" / "scaling.md").read_text()
    assert points.groupby("line")["run"].nunique().tolist() == [6] * 4
    for line, own in points.groupby("line"):
        [row] = [row for row in page.splitlines() if row.startswith(f"| {line} |")]
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        found = fit(own, drop=0, bootstraps=0, seed=0)
        assert int(cells[1]) == len(own)
        for cell, value in zip(cells[2:5], (found.law.E, found.law.alpha, found.law.beta), strict=True):
            assert float(cell.split()[0]) == pytest.approx(value, abs=6e-4)
        assert cells[7] == found.held_out_text()


def test_the_sensitivity_of_the_answer_is_that_of_its_frame() -> None:
    page = RESULTS / "sensitivity.md"
    block = renew_tables.sensitivity_block(renew_tables.sensitivity_runs())
    assert renew_tables.quoted(page) == block, "run python -m tests.docs.renew_tables"
    assert len(renew_tables.frame("sensitivity")) == 99
