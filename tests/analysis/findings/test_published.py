"""Published numbers: verdicts computed from frames, records checked, the page equal to what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from archbench.analysis.declared.frames import Frames
from archbench.analysis.declared.records import read_record, read_records
from archbench.analysis.findings.__main__ import main
from archbench.analysis.findings.published import Order, Record, Row, in_order
from archbench.analysis.findings.published_page import OrderVerdict, markdown
from archbench.analysis.findings.published_verdicts import order_verdict, page_of, row_values, row_verdict
from archbench.experiments.runtime.errors import DataError
from tests import ROOT
from tests.analysis.findings.test_claims import record as registered

RESULTS = ROOT / "docs" / "results"
RECORDS = RESULTS / "published"

SCORES = {"a": (0.9, 0.8, 1.0), "b": (0.5, 0.5, 0.5), "c": (0.4, 0.9, 0.7)}
FACTS = {
    "title": "A claim", "source": "Someone 2020", "place": "table 1", "setting": "large",
    "differs": "smaller", "tier": "C", "command": "archbench train study=compare",
    "frame": "planted", "unit": "share",
}  # fmt: skip


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Three arms of three seeds; the further test of a run is its score less 0.1."""
    rows = [
        {
            "task": "recall", "arm": arm, "seed": seed, "status": "complete", "score": score,
            "further": json.dumps({"sequence_length=64": score - 0.1}),
            "finished_at": "2026-01-02T03:04:05+00:00",
            "git_commit": "c0ffee123", "git_dirty": False, "device_processor": "p", "device_threads": "1",
        }
        for arm, scores in SCORES.items()
        for seed, score in enumerate(scores)
    ]  # fmt: skip
    pd.DataFrame(rows).to_parquet(tmp_path / "planted.parquet")
    return tmp_path


def write_record(folder: Path, **values: Any) -> Path:
    path = folder / "records" / "claim.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(FACTS | {"rows": [{"name": "A", "where": {"arm": "a"}}]} | values))
    return path


def claims(folder: Path) -> Path:
    """A folder with one registered claim, whose runs are not there."""
    (folder / "claims").mkdir(exist_ok=True)
    return registered(folder / "claims", track="", frame="none", commands=["archbench train"]).parent


def planted(frames: Path) -> pd.DataFrame:
    return pd.read_parquet(frames / "planted.parquet")


def test_our_number_is_picked_shifted_scaled_and_divided(frames: Path) -> None:
    record = Record(**FACTS, rows=[Row(name="A")], where={"task": "recall"}, offset=0.5, factor=2.0)
    frame = planted(frames)
    values = row_values(Row(name="A", where={"arm": "a"}), record, frame)
    assert values == pytest.approx({0: 0.8, 1: 0.6, 2: 1.0})
    longer = row_values(Row(name="A", where={"arm": "a"}, test="sequence_length=64"), record, frame)
    assert longer == pytest.approx({0: 0.6, 1: 0.4, 2: 0.8})
    plain = Record(**FACTS, rows=[Row(name="A")])
    ratio = row_values(Row(name="A", where={"arm": "a"}, over={"arm": "b"}), plain, frame)
    assert ratio == pytest.approx({0: 1.8, 1: 1.6, 2: 2.0})
    assert row_values(Row(name="A"), record, frame) == {}  # a row of the source that we have no arm for


def test_failed_runs_have_no_number_and_ambiguous_ones_are_refused(frames: Path) -> None:
    record, frame = Record(**FACTS, rows=[Row(name="A")]), planted(frames)
    frame.loc[frame["arm"] == "a", "status"] = ["complete", "diverged", "oom"]
    assert row_values(Row(name="A", where={"arm": "a"}), record, frame) == {0: 0.9}
    with pytest.raises(DataError, match="multiple runs of one seed"):
        row_values(Row(name="A", where={"task": "recall"}), record, frame)
    with pytest.raises(DataError, match="no column 'arms'; did you mean 'arm'"):
        row_values(Row(name="A", where={"arms": "a"}), record, frame)
    with pytest.raises(DataError, match="no run has arm=z"):
        row_values(Row(name="A", where={"arm": "z"}), record, frame)
    with pytest.raises(DataError, match="did you mean 'sequence_length=64'"):
        row_values(Row(name="A", where={"arm": "b"}, test="sequence_length=6"), record, frame)


@pytest.mark.parametrize(
    ("row", "values", "direction", "expected"),
    [
        ({"published": 0.9, "tolerance": 0.05}, {0: 0.86, 1: 0.80}, "higher", "missed by -0.070 (worse)"),
        ({"published": 0.9, "tolerance": 0.05}, {0: 0.86, 1: 0.88}, "higher", "reproduced within 0.05"),
        ({"published": 1.88, "tolerance": 0.05}, {0: 1.78}, "lower", "missed by -0.100 (better)"),
        ({"published": 1.88, "tolerance": 0.05}, {0: 1.78}, "none", "missed by -0.100"),
        ({"published": 0.3, "up_to": 0.4, "tolerance": 0.0}, {0: 0.35}, "higher", "reproduced within 0"),
        ({"published": 0.3, "up_to": 0.4, "tolerance": 0.01}, {0: 0.45}, "lower", "missed by +0.050 (worse)"),
        ({"published": 0.3}, {0: 0.9}, "higher", ""),
        ({"published": 0.3, "tolerance": 0.1}, {}, "higher", "not run"),
    ],
)
def test_a_number_is_reproduced_or_missed(
    row: dict[str, Any], values: dict[int, float], direction: str, expected: str
) -> None:
    assert row_verdict(Row(name="A", **row), values, direction, 3) == expected


VALUES = {name: dict(enumerate(scores)) for name, scores in SCORES.items()}


def test_an_order_is_as_good_as_its_weakest_pair() -> None:
    def verdict(better: list[str], worse: list[str], direction: str = "higher") -> str:
        return str(order_verdict(Order(claim="x", better=better, worse=worse), VALUES, direction, 3))

    # Gains 0.4, 0.3, 0.5: mean 0.4, t(0.975, 2) = 4.3027, standard error 0.1 / sqrt(3).
    assert verdict(["a"], ["b"]) == "holds; weakest gain, a over b: +0.400 ± 0.248"
    # Gains 0.5, -0.1, 0.3: the mean agrees, the interval does not.
    assert verdict(["a"], ["c"]) == "not separated; weakest gain, a over c: +0.233 ± 0.759"
    assert verdict(["a"], ["b", "c"]).startswith("not separated; weakest gain, a over c")
    assert verdict(["a"], ["b"], "lower") == "does not hold; weakest gain, a over b: -0.400 ± 0.248"
    # One pair that disagrees is shown, though the interval of another reaches further down.
    assert verdict(["b", "c"], ["a"]).startswith("does not hold; weakest gain")


def test_two_seeds_separate_nothing_and_none_were_not_run() -> None:
    order = Order(claim="x", better=["a"], worse=["b"])
    two = {name: {0: values[0], 1: values[0] + 0.0} for name, values in VALUES.items()}
    assert order_verdict(order, two, "higher", 3).verdict == "not separated"
    one = {name: {0: values[0]} for name, values in VALUES.items()}
    assert order_verdict(order, one, "higher", 3) == OrderVerdict("not separated", "a over b", "+0.400")
    assert order_verdict(order, {"a": {0: 1.0}, "b": {}}, "higher", 3) == OrderVerdict("not run")


def test_the_command_prints_and_writes_what_it_found(
    frames: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"name": "A", "published": 0.91, "tolerance": 0.05, "where": {"arm": "a"}},
        {"name": "B", "words": "fails", "where": {"arm": "b"}},
    ]
    path = write_record(frames, rows=rows, orders=[{"claim": "A over B", "better": ["A"], "worse": ["B"]}])
    words = [f"claims={claims(frames)}", f"published={path.parent}", f"frames={frames}", f"out={frames}"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for expected in ("reproduced within 0.05", "2026-01-02; p, 1 threads; commit c0ffee1; seeds 0, 1, 2"):
        assert expected in printed
    page = (frames / "results" / "published.md").read_text()
    assert "| claim | A | 0.910 | 0.900 ± 0.248 (3) | reproduced within 0.05 |" in page
    assert "| claim | B |" not in page  # it has no verdict
    table = pd.read_csv(frames / "results" / "published.csv", keep_default_na=False).set_index("row")
    assert [*table.loc["B", ["record", "published", "ours (seeds)", "verdict", "unit"]]] == [
        "claim", "fails", "0.500 ± 0.000 (3)", "", "share",
    ]  # fmt: skip
    assert "| claim | A over B |  | +0.400 ± 0.248 | holds |" in page
    assert "Verdicts: reproduced 1, holds 1." in page


def test_a_frame_of_something_else_is_refused(frames: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted(frames).drop(columns=["score", "seed"]).to_parquet(frames / "planted.parquet")
    path = write_record(frames)
    assert main([f"claims={claims(frames)}", f"published={path.parent}", f"frames={frames}"]) == 3
    assert "is no frame of results: no column 'score'" in capsys.readouterr().err


def test_a_record_without_a_frame_was_not_run(frames: Path) -> None:
    write_record(frames, frame="", rows=[{"name": "A", "published": 1.0, "tolerance": 0.1}])
    record = read_record(frames / "records" / "claim.yaml", Record)
    page = page_of("claim", record, Frames(Path("runs"), RESULTS))
    assert (page.when, page.lines[0].verdict) == ("not run", "not run")
    assert "- Not run: [A claim](published/claim.yaml)." in markdown([page])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tier": "c"}, "tier='c'"),
        ({"setting": ""}, "setting is empty"),
        ({"directon": "lower"}, "did you mean 'direction'"),
        ({"rows": [{"name": "A", "tolerance": 0.1}]}, "need a published number"),
        ({"rows": [{"name": "A"}, {"name": "A"}]}, "names of their own"),
        ({"orders": [{"claim": "x", "better": ["A"], "worse": ["B"]}]}, "no row 'B'"),
        ({"frame": "plantd"}, "plantd.parquet cannot be read"),
    ],
)
def test_a_bad_record_is_one_line(
    frames: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any], message: str
) -> None:
    path = write_record(frames, **values)
    assert main([f"claims={claims(frames)}", f"published={path.parent}", f"frames={frames}"]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert "claim" in error


def test_bad_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"published={RECORDS}", "claim=shakespear"]) == 2
    assert "did you mean 'shakespeare'" in capsys.readouterr().err
    assert main(["publishd=x"]) == 2
    assert "did you mean 'published='" in capsys.readouterr().err
    assert main(["claim=shakespeare", "out=docs"]) == 2
    assert "the pages have all claims" in capsys.readouterr().err


def test_runs_of_a_study_take_the_place_of_the_frame(write_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 0.5, study="planted", task="recall")
    path = write_record(tmp_path, rows=[{"name": "A", "where": {"arm": "decoder"}}])
    page = page_of("claim", read_record(path, Record), Frames(tmp_path / "runs", None))
    assert (page.lines[0].ours.mean, page.lines[0].ours.n) == (0.5, 3)
    absent = page_of("claim", read_record(path, Record), Frames(tmp_path / "records", None))
    assert absent.when == "not run"


def test_runs_are_those_of_the_study_that_a_record_names(write_run: Any, tmp_path: Path) -> None:
    write_run("decoder", 0, 0.5, study="track_cpu", task="recall")
    where, rows = {"study": "track_cpu"}, [{"name": "A", "where": {"arm": "decoder"}}]
    path = write_record(tmp_path, frame="../../conf/track/cpu", where=where, rows=rows)
    page = page_of("claim", read_record(path, Record), Frames(tmp_path / "runs", None))
    assert (page.lines[0].ours.mean, page.lines[0].ours.n) == (0.5, 1)


def test_the_page_is_what_records_and_frames_say() -> None:
    records = in_order(read_records(RECORDS, Record))
    pages = [page_of(name, record, Frames(ROOT / "runs", RESULTS)) for name, record in records.items()]
    assert (RESULTS / "published.md").read_text() == markdown(pages)
    assert sum(page.when != "not run" for page in pages if page.record.tier == "C") >= 8
