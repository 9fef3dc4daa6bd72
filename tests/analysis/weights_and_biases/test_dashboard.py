"""The W&B dashboard: what would be sent, read from its JSON, and what W&B's own files hold."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.curves import learning_curves
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.page import Figures
from archbench.analysis.tables.body import table_body
from archbench.analysis.tables.study_markdown import markdown_table
from archbench.analysis.weights_and_biases import dashboard
from archbench.analysis.weights_and_biases.analysis_run import contents, rows, upload_analysis
from tests import wandb_file


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a key nor a way out: only the helper process of W&B on this machine can be reached."""

    def refuse(*address: Any, **_: Any) -> None:
        raise AssertionError(f"the network was asked for {address}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study's figures take seconds to draw; most tests need no more than one."""

    def learning(comparison: Comparison) -> Figures:
        interactive = {"learning_curves": learning_curves(comparison), "speed": None}
        return Figures(interactive=interactive, ladders={}, laws={})

    monkeypatch.setattr(dashboard, "draw", learning)


def dry_run(runs: Path, output: Path, *words: str) -> dict[str, Any]:
    assert dashboard.main([f"runs={runs}", "--dry-run", f"output={output}", *words]) == 0
    return {path.stem: json.loads(path.read_text()) for path in output.iterdir()}


def panels(section: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel["config"] for panel in section["panels"]]


@pytest.mark.usefixtures("one_figure")
def test_a_dry_run_writes_the_whole_dashboard_and_the_same_each_time(study: Path, tmp_path: Path) -> None:
    found = dry_run(study, tmp_path / "one")
    assert set(found) == {"workspace", "report", "analysis"}
    assert found == dry_run(study, tmp_path / "two")
    sections = found["workspace"]["view"]["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == ["Learning curves", "Cost", "Stability"]
    learning, cost, stability = map(panels, sections)
    curves = [(panel["xAxis"], *panel["metrics"]) for panel in learning]
    axes = ("progress/tokens", "progress/flops", "progress/seconds")
    metrics = ("answer_accuracy", "bits_per_byte")
    assert curves == [(axis, f"validation/{metric}") for metric in metrics for axis in axes]
    assert {(panel["groupAgg"], panel["groupArea"]) for panel in learning} == {("mean", "minmax")}
    assert "summary_metrics.result/training/device_seconds" in [n for p in cost for n in p.get("metrics", [])]
    assert ("progress/tokens", "train/grad_norm") in [
        (panel["xAxis"], panel["metrics"][0]) for panel in stability if "xAxis" in panel
    ]


def test_lines_are_backbones_where_these_tell_the_arms_apart(
    study: Path, write_run: Any, tmp_path: Path
) -> None:
    for seed in range(2):
        write_run("decoder", seed, 2.4, study="plain")
        write_run("mamba", seed, 2.5, study="plain")
    wanted = {"plain": "derived.value.backbone", "compare": "group"}  # compare has two tasks
    for name, key in wanted.items():
        found = dry_run(study, tmp_path / name, f"study={name}")["workspace"]["view"]["spec"]["section"]
        grouped = {
            p["groupBy"]
            for section in found["panelBankConfig"]["sections"]
            for p in panels(section)
            if "groupBy" in p
        }
        assert grouped == {key}
        assert [each["name"] for each in found["runSets"][0]["grouping"]] == [key]


@pytest.mark.usefixtures("one_figure")
def test_the_verdict_s_numbers_are_the_frame_s(study: Path, tmp_path: Path) -> None:
    found = dry_run(study, tmp_path / "out")
    frame = load_study(study, "compare")
    table, arms = found["analysis"]["tables"]["verdict"], Comparison(frame).arms
    assert {"rank", "gain", "gain_p", "verdict"} <= set(table["columns"])
    assert table["columns"] == list(arms.columns)
    assert table["rows"] == json.loads(json.dumps(rows(arms)))
    results = found["analysis"]["tables"]["results"]
    scores = [row[results["columns"].index("score")] for row in results["rows"]]
    assert scores == [None if value != value else value for value in frame["score"]]
    assert found["analysis"]["warnings"] == Comparison(frame).warnings != []
    blocks = found["report"]["view"]["spec"]["blocks"]
    (text,) = [b["content"] for b in blocks if b["type"] == "markdown-block" and "## recall" in b["content"]]
    for _, own in arms.groupby(["task", "scale"]):
        assert "\n".join(markdown_table(table_body(own).narrow()[0])) in text
    for warning in Comparison(frame).warnings:
        assert warning in text


def test_the_report_shows_figures_and_tables_of_the_analysis_run_alone(study: Path, tmp_path: Path) -> None:
    found = dry_run(study, tmp_path / "out")
    figures = found["analysis"]["figures"]
    assert {"figures/learning_curves", "figures/final_scores"} <= set(figures)
    grids = [b["metadata"] for b in found["report"]["view"]["spec"]["blocks"] if b["type"] == "panel-grid"]
    curves, media, tables = (
        [panel["config"] for panel in grid["panelBankSectionConfig"]["panels"]] for grid in grids
    )
    assert [panel["mediaKeys"] for panel in media] == [[name] for name in figures]
    assert json.dumps(tables).count("tables/verdict") > 0
    assert {panel["xAxis"] for panel in curves} == {"progress/tokens", "progress/flops", "progress/seconds"}
    kinds = [grid["runSets"][0]["filters"]["filters"][0]["value"] for grid in grids]
    assert kinds == ["train", "analysis", "analysis"]
    assert all("project" not in grid["runSets"][0] for grid in grids), "W&B would look it up"


@pytest.mark.usefixtures("one_figure")
def test_the_analysis_run_is_one_and_sent_again_only_when_it_changed(
    study: Path, write_run: Any, tmp_path: Path
) -> None:
    def send() -> str:
        frame, history = load_study(study, "compare"), load_history(study, "compare")
        comparison = Comparison(frame, history)
        sent = contents(comparison, dashboard.draw(comparison))
        return upload_analysis(study / "compare", sent, mode="offline", project="p", entity=None)

    def files() -> list[Path]:
        return sorted((study / "compare" / "wandb").glob("offline-run-*/*.wandb"))

    assert (send(), send()) == ("uploaded", "already there")
    (path,) = files()
    record = wandb_file.run_record(path)
    assert (record.run_id, record.job_type, record.project) == ("analysis-compare", "analysis", "p")
    (row,) = wandb_file.history(path)
    frame = load_study(study, "compare")
    table = json.loads((path.parent / "files" / row["tables/verdict/path"]).read_text())
    arms = Comparison(frame.drop(columns=["path", "command"])).arms
    assert table["columns"] == list(arms.columns)
    assert table["data"] == json.loads(json.dumps(rows(arms)))
    figure = path.parent / "files" / row["figures/learning_curves/path"]
    assert figure.read_bytes().startswith(b"\x89PNG")
    [frames] = [artifact for artifact in wandb_file.artifacts(path) if artifact.type == "frames"]
    assert frames.name == "analysis-compare-frames"
    held = {entry.path: Path(entry.local_path) for entry in frames.manifest.contents}
    assert {name.split(".")[1] for name in held} == {"csv", "parquet"}
    assert pd.read_parquet(held["results.parquet"])["score"].equals(frame["score"])
    assert pd.read_csv(held["verdict.csv"])["verdict"].dropna().tolist() == arms["verdict"].dropna().tolist()
    assert len(pd.read_parquet(held["comparisons.parquet"])) == len(Comparison(frame).pairs)
    write_run("decoder", 3, 2.41)
    assert send() == "uploaded"
    assert {wandb_file.run_record(each).run_id for each in files()} == {"analysis-compare"}


class View:
    """Stands for a Workspace or a Report: W&B gives it an id when it is saved without one."""

    saved = 0
    url = "https://wandb.ai/me/p"

    def __init__(self) -> None:
        self._internal_name = self._internal_id = self.id = ""

    def save(self) -> None:
        if not (self.id or self._internal_id):
            View.saved += 1
            self._internal_name, self._internal_id, self.id = "nw-x-v", f"w{View.saved}", f"r{View.saved}"


def test_views_are_replaced_and_not_doubled(tmp_path: Path) -> None:
    mark = tmp_path / "mark.json"
    for place, views in (("me/p", 2), ("me/p", 2), ("me/other", 4)):
        dashboard.save_views(mark, View(), View(), place)
        assert View.saved == views


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["study=compare"], "no API key: set WANDB_API_KEY or run `wandb login`; or add --dry-run"),
        (["--dry-run", "study=compar"], "did you mean 'compare'?"),
        (["--dry-run", "study=a,b"], "study=a,b: a dashboard shows one study"),
        (["--dry-run", "ouput=x"], "did you mean 'output="),
        (["dry_run=maybe"], "dry_run=maybe must be true or false"),
        (["output=x"], "add --dry-run"),
        (["--dry-run", "study="], "'study=': write study=VALUE"),
    ],
)
def test_mistakes_are_one_line_and_two(
    study: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert dashboard.main([f"runs={study}", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (study / "compare" / "dashboard").exists()


@pytest.mark.usefixtures("one_figure")
def test_a_network_that_fails_is_one_line_and_one(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ConnectionError("refused\nby https://me:canary@example.org")

    monkeypatch.setattr("archbench.analysis.weights_and_biases.options.signed_in", lambda: True)
    monkeypatch.setattr(dashboard, "send", fail)
    assert dashboard.main([f"runs={study}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "ConnectionError: refused by https://<redacted>@example.org" in line


@pytest.mark.usefixtures("one_figure")
def test_everything_is_sent_to_one_place(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The calls that need a server are replaced; a run that fails does not stop the others."""
    for folder in (study / "compare").glob("*/s*"):
        (folder / "config.yaml").write_text("{}\n")
    asked: list[tuple[str, str]] = []

    def upload(folder: Any, *, project: str, entity: str) -> str:
        asked.append((project, entity))
        return "failed" if len(asked) == 1 else "already there"

    def upload_analysis(*_: Any, mode: str, project: str, entity: str) -> str:
        asked.append((project, entity))
        return "uploaded"

    def save_views(mark: Path, workspace: Any, report: Any, place: str) -> str:
        asked.extend((view.project, view.entity) for view in (workspace, report))
        return place

    monkeypatch.setattr("archbench.analysis.weights_and_biases.options.signed_in", lambda: True)
    monkeypatch.setattr("wandb.Api", lambda: SimpleNamespace(default_entity="me"))
    for stand_in in (upload, upload_analysis, save_views):
        monkeypatch.setattr(dashboard, stand_in.__name__, stand_in)
    assert dashboard.main([f"runs={study}", "project=p"]) == 1
    folders = list((study / "compare").glob("*/s*"))
    assert asked == [("p", "me")] * (len(folders) + 3)
    printed = capsys.readouterr().out
    assert printed.count("already there") == len(folders) - 1
    assert printed.endswith("analysis-compare: uploaded\nme/p\n")
