from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import pandas as pd
import pytest

from archbench.analysis import compare
from archbench.analysis.compare import CompareConfig, Study, main
from archbench.analysis.comparison import NO_CURVES, Comparison
from archbench.analysis.figures.contexts import read_positions
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.verdicts import verdict_figure
from archbench.analysis.load.study import load_study
from archbench.analysis.report.needs import training_commands
from archbench.analysis.stats.arms import arm_table
from archbench.analysis.tables.latex import render_latex
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables
from archbench.analysis.tables.terminal import render_tables
from archbench.experiments.config.options import typed_words
from tests import ROOT


def test_results_go_beside_the_runs_or_where_they_are_sent() -> None:
    found = Study(  # type: ignore[arg-type]
        config=CompareConfig(study="lr"), comparison=Comparison(NO_CURVES), tables=None, figures={}
    )
    assert found.folder == Path("runs/lr/analysis")
    assert replace(found, config=CompareConfig(out="there")).folder == Path("there")
    read = typed_words(CompareConfig, ["--allow-mixed", "runs=a=b"])
    assert read == CompareConfig(allow_mixed=True, runs="a=b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["stduy=compare"],
            "'stduy=compare': did you mean 'study='? the keys are study, runs, frame, out, ",
        ),
        (["--allow-mix"], "--allow-mix: there is no such option; did you mean --allow-mixed?"),
        (["compare"], "'compare': did you mean study=compare?"),
        (["study="], "'study=': write study=VALUE"),
        (["study=compare", "runs=nowhere"], "study=compare is not in nowhere/"),
        (
            ["frame=docs/results/compare.parquet", "speed=none.parquet"],
            "speed=none.parquet: there is no such",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {words}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_everything_is_written_and_printed(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"runs={study}"]) == 0
    frame = load_study(study, "compare")
    out = capsys.readouterr().out
    assert out.startswith(render_tables(study_tables(Comparison(frame))))
    folder = study / "compare" / "analysis"
    names = [
        "results.csv",
        "results.parquet",
        "table.csv",
        "table.md",
        "table.tex",
        "pairs.csv",
        "slices.csv",
        "compare.html",
        "verdicts.svg",
        "verdicts.png",
        "task_grid.csv",
        "task_grid.md",
    ]
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    tail = out[out.rindex("wrote ") :].removeprefix(f"wrote {folder / 'compare.html'}\nbeside it: ")
    assert sorted([*tail.replace("\n", "").replace("  ", " ").strip().split(", "), "compare.html"]) == sorted(
        names
    )
    assert max(len(line) for line in out.splitlines() if str(folder) not in line) <= 80

    parquet = pd.read_parquet(folder / "results.parquet")
    assert parquet["score"].equals(frame["score"])
    assert parquet["arm"].tolist() == frame["arm"].tolist()
    csv = pd.read_csv(folder / "results.csv")
    assert csv["score"].tolist() == pytest.approx(frame["score"].tolist(), nan_ok=True)
    table = pd.read_csv(folder / "table.csv")
    assert table["score"].tolist() == pytest.approx(arm_table(frame)["score"].tolist(), nan_ok=True)
    assert (folder / "table.md").read_text() == render_markdown(study_tables(Comparison(frame)))
    assert (folder / "table.tex").read_text() == render_latex(study_tables(Comparison(frame)))
    assert len(pd.read_csv(folder / "pairs.csv")) == len(Comparison(frame).pairs)


def test_mixed_classes_are_ranked_only_when_asked(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[pd.DataFrame] = []
    monkeypatch.setattr(compare, "publish", lambda found: frames.append(found.comparison.frame))
    for flags in ([], ["--allow-mixed"]):
        assert main([f"runs={study}", *flags]) == 0
    assert not frames[0]["allow_mixed"].any()
    assert frames[1]["allow_mixed"].all()


def test_any_model_can_be_the_baseline(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"runs={study}", "baseline=mamba"]) == 0
    out = capsys.readouterr().out
    assert "Warning: the study does not declare the baseline mamba" in out
    table = pd.read_csv(study / "compare" / "analysis" / "table.csv")
    assert set(table.query("task == 'text' and likelihood == 'exact'")["baseline"].dropna()) == {"mamba"}
    assert main([f"runs={study}", "baseline=mambo"]) == 2
    assert "baseline=mambo is no model of compare; did you mean 'mamba'?" in capsys.readouterr().err


def test_wide_tables_and_several_studies(
    study: Path, write_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        write_run("hybrid", seed, 2.2, study="more", processor="q")
    assert main([f"runs={study}", "study=compare,more", "--wide"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        render_tables(study_tables(Comparison(load_study(study, "compare,more"))), wide=True)
    )
    assert "Study compare,more: 28 of 33 runs complete" in out
    assert "Between the studies, processor is p in compare, q in more." in out
    assert (study / "compare,more" / "analysis" / "compare.html").is_file()
    write_run("gla", 0, 2.2, study="other", fingerprint="data-2")
    assert main([f"runs={study}", "study=compare,other"]) == 2
    error = capsys.readouterr().err
    assert "study=compare,other cannot be compared on text, nano, exact: other data" in error
    assert error.count("\n") == 1


def test_the_analysis_is_not_taken_for_a_run(study: Path) -> None:
    assert main([f"runs={study}"]) == 0
    assert len(load_study(study, "compare")) == 30


def test_it_needs_neither_torch_nor_hydra() -> None:
    heavy = {"torch", "hydra", "wandb", "archbench.experiments.run"}
    code = f"import sys, archbench.analysis.compare; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_the_command_line(study: Path) -> None:
    command = [sys.executable, "-m", "archbench.analysis.compare"]
    help_text = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "study=compare" in help_text
    wrong = subprocess.run([*command, "study=compar", f"runs={study}"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "did you mean 'compare'?" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_reader_may_leave_early(study: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "archbench.analysis.compare", f"runs={study}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout
    assert run.stderr
    run.stdout.close()
    assert run.stderr.read() == ""
    assert run.wait() == 0
    assert (study / "compare" / "analysis" / "compare.html").is_file()


def test_a_place_it_cannot_write_to(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study / "file").touch()
    assert main([f"runs={study}", f"out={study}/file"]) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot write to {study}/file/")


@pytest.mark.full
def test_figures_for_papers(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "FILE_FORMATS", ("svg",))
    assert main([f"runs={study}", "--figures"]) == 0
    folder = study / "compare" / "analysis" / "figures"
    figures = sorted(path.name for path in folder.iterdir())
    assert "learning_curves.svg" in figures
    assert "pareto_fronts.svg" in figures
    assert "scaling_laws.svg" not in figures  # the study has nothing for it
    svg = (folder / "learning_curves.svg").read_text()
    for words in ("training tokens", "bits per byte", ">decoder<", ">mamba<"):
        assert words in svg


@pytest.mark.full
@pytest.mark.usefixtures("no_page")
def test_a_stored_frame_is_compared_without_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ROOT / "docs" / "results"
    assert main([f"frame={results / 'compare.parquet'}", f"out={tmp_path}"]) == 0
    runs = pd.read_parquet(results / "compare.parquet")
    assert capsys.readouterr().out.startswith(render_tables(study_tables(Comparison(runs))))
    figure = verdict_figure(Comparison(runs))
    assert figure is not None
    assert (tmp_path / "verdicts.svg").read_bytes() == printed(figure, "svg")
    pixels = matplotlib.image.imread(tmp_path / "verdicts.png")
    assert pixels.shape[1] == 1700  # two pixels for each that a README shows
    stored, written = (pd.read_csv(path) for path in (results / "compare_pairs.csv", tmp_path / "pairs.csv"))
    stored = stored[stored["task"].isin(runs["task"])].reset_index(drop=True)  # it has other tasks, too
    # Without the other tasks a column may be empty, which has no type.
    pd.testing.assert_frame_equal(stored, written[stored.columns], check_dtype=False)


@pytest.mark.parametrize("places", [True, False])
def test_a_stored_frame_reads_no_runs_of_the_same_name(
    write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        write_run("decoder", seed)
    frame = load_study(Path("runs"), "compare")
    if not places:  # as in frames of tracks
        frame = frame.drop(columns=["path", "arm"])
    frame.to_parquet("frame.parquet")
    stored = compare.stored_frame(Path("frame.parquet"))
    assert stored["path"].is_unique
    assert not any(Path(path).exists() for path in stored["path"])
    assert read_positions(stored).empty
    assert training_commands(stored) == training_commands(load_study(Path("runs"), "compare"))


@pytest.mark.usefixtures("no_page")
def test_all_tasks_stand_side_by_side(
    write_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for task in ("recall", "copying"):
        for seed, score in enumerate((1.0, 0.97, 0.5)):
            write_run("decoder", seed, score, task=task, likelihood=None)
            write_run("mamba", seed, 0.03, task=task, likelihood=None)
    assert main([f"runs={tmp_path / 'runs'}"]) == 0
    assert "0.823 2/3" in capsys.readouterr().out
    folder = tmp_path / "runs" / "compare" / "analysis"
    assert pd.read_csv(folder / "task_grid.csv")["solved"].sum() == 4
    assert "| recall |" in (folder / "task_grid.md").read_text()
