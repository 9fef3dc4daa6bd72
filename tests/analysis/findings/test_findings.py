"""Verdicts on claims and their page, from runs made up by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.board.claims import entry
from archbench.analysis.declared.frames import Frames
from archbench.analysis.findings.__main__ import main
from archbench.analysis.findings.claims import Claim
from archbench.analysis.findings.figure import LARGEST, findings_figure, position
from archbench.analysis.findings.page import markdown, measurements
from archbench.analysis.findings.verdicts import Finding, decide_claim, judge, runs_of
from archbench.analysis.load.study import load_study
from archbench.experiments.runtime.errors import DataError
from tests import ROOT
from tests.analysis.findings.test_claims import record

PUBLISHED = ROOT / "docs" / "results" / "published"
CLEAR = (0.90, 0.91, 0.92, 0.90, 0.91)
"""Scores of five seeds."""


def claim(**changes: Any) -> Claim:
    words = dict.fromkeys(("claim", "source", "refuted_by", "known", "setting", "not_shown"), "Words.")
    runs: dict[str, Any] = {
        "frame": "compare",
        "commands": ["archbench train study=compare"],
        "workload": "recall",
    }
    sides = {"model": {"backbone": "decoder"}, "other": {"backbone": "s4"}}
    return Claim(**words | runs | sides | {"effect": 0.1} | changes)


@pytest.fixture
def decided(write_run: Any, tmp_path: Path) -> Any:
    """``decided(claim, decoder, s4)`` judges a claim on the scores of seeds of two models."""

    def decide(claim: Claim, decoder: tuple[float, ...], s4: tuple[float, ...]) -> Finding:
        for name, scores in (("decoder", decoder), ("s4", s4), ("mamba", (0.1, 0.2, 0.3))):
            for seed, score in enumerate(scores):
                write_run(name, seed, score, task="recall", likelihood=None)
        load_study(tmp_path / "runs", "compare").to_parquet(tmp_path / "compare.parquet")
        return decide_claim("one", claim, Frames(tmp_path / "runs", tmp_path))

    return decide


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ((0.60, 0.61, 0.62, 0.60, 0.61), "confirmed"),
        ((0.86, 0.87, 0.88, 0.86, 0.87), "refuted"),  # better, but by less than is of interest
        ((0.95, 0.96, 0.97, 0.95, 0.96), "refuted"),
        ((0.60, 0.95, 0.75, 0.90, 0.80), "undecided"),
    ],
)
def test_the_interval_and_the_smallest_effect_decide(
    decided: Any, other: tuple[float, ...], verdict: str
) -> None:
    assert decided(claim(), CLEAR, other).verdict == verdict


@pytest.mark.parametrize(
    ("other", "verdict"),
    [((0.91, 0.90, 0.92, 0.91, 0.90), "confirmed"), ((0.60, 0.61, 0.62, 0.60, 0.61), "refuted")],
)
def test_equal_means_within_the_effect(decided: Any, other: tuple[float, ...], verdict: str) -> None:
    assert decided(claim(relation="equal", effect=0.05), CLEAR, other).verdict == verdict


def test_the_difference_is_that_of_the_means(decided: Any) -> None:
    found = decided(claim(), CLEAR, (0.60, 0.61, 0.62, 0.60, 0.61))
    assert found.difference == pytest.approx(0.3)
    assert found.low < 0.3 < found.high
    assert found.scores[0] == pytest.approx(CLEAR)


def test_too_few_seeds_decide_nothing(decided: Any) -> None:
    found = decided(claim(), CLEAR[:3], (0.1, 0.1, 0.11))
    assert (found.verdict, found.reason) == ("undecided", "3 of 5 seeds have ended")


@pytest.mark.parametrize(("second_best", "verdict"), [(0.7, "confirmed"), (0.5, "undecided")])
def test_the_second_best_rate_must_be_better_too(
    decided: Any, tmp_path: Path, second_best: float, verdict: str
) -> None:
    decided(claim(), CLEAR, (0.60, 0.61, 0.62, 0.60, 0.61))
    runs = runs_of(claim(), Frames(tmp_path / "runs", tmp_path))
    best, second = ({"model": 0.9, "other": 0.6}, {"model": second_best, "other": 0.4})
    tuned = runs.assign(
        protocol="1.0",
        tuning_validation=runs["arm"].map(best),
        tuning_second_validation=runs["arm"].map(second),
    )
    found = judge("one", claim(), tuned)
    assert (found.verdict, found.reason) == (verdict, "depends on tuning" * (verdict == "undecided"))


def test_a_withdrawn_claim_keeps_its_measurement_and_has_no_verdict(decided: Any, tmp_path: Path) -> None:
    standing = decided(claim(), CLEAR, (0.60, 0.61, 0.62, 0.60, 0.61))
    same = claim(withdrawn="One rate is at the edge of its grid.")
    withdrawn = decide_claim("two", same, Frames(tmp_path / "runs", tmp_path))
    assert (standing.verdict, withdrawn.verdict) == ("confirmed", "withdrawn")
    assert (withdrawn.low, withdrawn.high) == (standing.low, standing.high)
    page = markdown([standing, withdrawn], None)
    assert "1 confirmed, 1 withdrawn." in page
    assert page.count(" answer accuracy. One rate is at the edge of its grid.\n") == 1
    assert entry(withdrawn).drawing is not None
    assert ("withdrawn", "One rate is at the edge of its grid.") in entry(withdrawn).facts


def test_what_has_no_runs_is_not_run(tmp_path: Path) -> None:
    assert decide_claim("one", claim(), Frames(tmp_path, tmp_path)).verdict == "not run"


def test_a_column_that_is_not_there_is_named(decided: Any) -> None:
    with pytest.raises(DataError, match="backbones"):
        decided(claim(model={"backbones": "decoder"}), CLEAR, CLEAR)


def test_the_page_has_the_table_and_a_file_the_measurements(decided: Any) -> None:
    finding = decided(claim(), CLEAR, (0.60, 0.61, 0.62, 0.60, 0.61))
    findings = [Finding(name="two", claim=claim(), verdict="not run"), finding]
    page = markdown(findings, "findings.svg")
    assert "1 confirmed, 1 not run." in page
    confirmed, not_run = page.index("## Confirmed"), page.index("## Not run")
    assert confirmed < page.index("- ↑ [Words.](findings/one.yaml) +0.300 [0.") < not_run
    assert page.index("- ↑ [Words.](findings/two.yaml)\n") > not_run
    assert "## Refuted" not in page
    rows = measurements(findings).set_index("name")
    assert [*rows.index] == ["one", "two"]
    one = rows.loc["one"]
    assert (one["model"], one["model_mean"], one["other"], one["other_mean"]) == (
        "decoder",
        "0.908",
        "s4",
        "0.608",
    )
    assert (one["difference"], one["seeds"], one["metric"]) == ("0.300", 5, "answer accuracy")
    assert one["commands"] == "archbench train study=compare"
    assert rows.loc["two", "difference"] == ""


def test_the_page_marks_a_difference_of_solve_rates(decided: Any) -> None:
    """Take a model of which one seed of five does not solve the task, so that its accuracies jump."""
    finding = decided(claim(), (1.0, 1.0, 0.99, 1.0, 0.2), (0.1, 0.1, 0.11, 0.1, 0.1))
    assert finding.test == "Boschloo, solve rate"
    assert finding.difference == pytest.approx(0.8)  # four of five, against none
    [row] = measurements([finding]).to_dict("records")
    assert (row["model_mean"], row["other_mean"], row["test"]) == ("0.838", "0.102", "Boschloo, solve rate")
    assert "+0.800 [0." in (page := markdown([finding], None))
    assert "] of the solve rates\n" in page


def test_the_drawing_has_the_differences_in_units_of_the_smallest_of_interest(decided: Any) -> None:
    found = decided(claim(), CLEAR, (0.60, 0.61, 0.62, 0.60, 0.61))
    figure = findings_figure([found, Finding(name="two", claim=claim(), verdict="not run")])
    assert figure is not None
    assert figure.layout.yaxis.ticktext == ("1 confirmed",)
    [point] = figure.select_traces({"mode": "markers"})
    assert point.marker.symbol == "circle"
    assert point.x == pytest.approx([position(3.0)])  # 0.3, of which 0.1 is of interest
    assert findings_figure([Finding(name="two", claim=claim(), verdict="not run")]) is None


def test_the_axis_of_differences_is_continuous_and_ends() -> None:
    values = [-1000, -LARGEST, -10, -1, -0.5, 0, 0.5, 1, 1.001, 10, LARGEST]
    drawn = [position(value) for value in values]
    assert drawn == sorted(drawn)
    assert drawn[0] == drawn[1]
    assert position(0.5) == 0.5
    assert position(1.001) - position(1) == pytest.approx(0.0005, rel=0.01)
    assert position(-10) == -position(10)


def test_own_runs_count_without_what_is_kept(decided: Any, tmp_path: Path) -> None:
    low, high = (0.60, 0.61, 0.62, 0.60, 0.61), CLEAR
    kept = decided(claim(), high, low)
    (tmp_path / "compare.parquet").unlink()
    assert decide_claim("one", claim(), Frames(tmp_path / "runs", tmp_path)).verdict == "not run"
    own = decide_claim("one", claim(), Frames(tmp_path / "runs", None))
    assert (own.verdict, own.scores) == (kept.verdict, kept.scores)
    elsewhere = claim(frame="", commands=[], track="cpu", workload="digits")
    assert runs_of(elsewhere, Frames(tmp_path / "runs", None)).empty  # its frame is kept


def test_the_page_is_of_kept_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"out={tmp_path}", "--own-runs"]) == 2
    assert "stored results" in capsys.readouterr().err


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, track="", frame="none", commands=["archbench train study=none"])
    words = [f"claims={tmp_path}", f"published={PUBLISHED}", f"frames={PUBLISHED.parent}"]
    assert main([*words, f"out={tmp_path}/docs"]) == 0
    printed = capsys.readouterr().out
    assert "not run" in printed
    assert "Tiny Shakespeare" in printed
    assert "1 not run" in (tmp_path / "docs" / "findings.md").read_text()
    assert main([*words, "claim=one"]) == 0
    assert "Tiny Shakespeare" not in capsys.readouterr().out


def test_an_unknown_claim_gets_the_nearest_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path)
    assert main([f"claims={tmp_path}", f"published={PUBLISHED}", "claim=ones"]) == 2
    assert "did you mean 'one'" in capsys.readouterr().err
