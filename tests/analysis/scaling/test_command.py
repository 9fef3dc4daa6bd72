"""The command: tables of a CSV of points and of a study, and one clear line for whatever cannot be fitted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.scaling.__main__ import main, read_points
from archbench.analysis.scaling.laws import Law, fit_law
from archbench.analysis.scaling.points import study_points
from tests.results import write_result

LAW = Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)


def write_csv(path: Path) -> Path:
    grid = [(n, c) for c in np.geomspace(1e19, 1e21, 5) for n in np.geomspace(1e8, 3e9, 6)]
    frame = pd.DataFrame(grid, columns=["Model Size", "Training FLOP"])
    size = frame["Model Size"].to_numpy()
    frame["loss"] = LAW.loss(size, frame["Training FLOP"].to_numpy() / (6 * size))
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def ladder(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """Two backbones on one law, but mamba takes twice the FLOPs for each parameter and token."""
    cell = 0
    for backbone, factor in (("decoder", 6.0), ("mamba", 12.0)):
        for size in np.geomspace(1e5, 3e6, 5).round().astype(int).tolist():
            for tokens in np.geomspace(1e7, 1e9, 4):
                cell += 1
                loss = float(LAW.loss(np.array(size), np.array(tokens)))
                folder = write_run(backbone, 0, loss, study="ladder", digest=f"{cell:08x}")
                result = json.loads((folder / "result.json").read_text())
                result["parameters"] |= {"embedding": 8000, "head": 500, "active": size + 8500}
                write_result(folder, result)
                last = {"kind": "validation", "step": 99, "tokens": tokens, "flops": factor * size * tokens}
                with (folder / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps({**last, "seconds": 9.0, "bits_per_byte": loss}) + "\n")
    write_run("s4", 0, 2.5, study="ladder")
    return tmp_path / "runs"


def test_a_csv_is_fitted_beside_the_published_constants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"points={write_csv(tmp_path / 'p.csv')}", "bootstraps=40"]) == 0
    printed = capsys.readouterr().out
    rows = {line.strip().split("  ")[0]: line for line in printed.splitlines()}
    assert "0.34 [0.34, 0.34]" in rows["alpha"]
    assert rows["alpha"].rstrip().endswith("0.34")  # Hoffmann et al.
    assert "0.3478" in rows["alpha"]  # Besiroglu et al.
    assert "p.csv: 30 points" in printed
    assert "mean error 0.00% (6)" in printed


def test_points_of_a_csv_have_chinchillas_tokens(tmp_path: Path) -> None:
    found = read_points(write_csv(tmp_path / "p.csv"))
    assert (6 * found["size"] * found["tokens"]).tolist() == pytest.approx(found["flops"].tolist())


def test_points_of_a_study_count_the_active_body(ladder: Path) -> None:
    frame = load_study(ladder, "ladder")
    found = study_points(frame, load_history(ladder, "ladder"))
    assert found.groupby("line").size().to_dict() == {"decoder": 20, "mamba": 20, "s4": 1}
    mamba = fit_law(found[found["line"] == "mamba"])
    assert mamba.factor == pytest.approx(12.0)
    assert mamba.alpha == pytest.approx(0.34, abs=1e-3)
    assert found["size"].min() == pytest.approx(1e5)


def test_a_study_is_fitted_line_by_line_and_what_is_too_small_is_said(
    ladder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study=ladder", f"runs={ladder}", "bootstraps=40"]) == 0
    printed = capsys.readouterr().out
    lines = [line.strip() for line in printed.splitlines()]
    mamba = " ".join(line for line in lines if line.startswith("mamba"))  # columns without room follow below
    assert "0.5 [0.5, 0.5]" in mamba  # twice the FLOPs: half as many times fewer
    assert "text: s4 is not fitted: 1 points" in printed


def test_a_run_gives_a_point_for_each_decay(write_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = write_run("decoder", 0, 2.4)  # validated at steps 10, 20 ... 50
    (folder / "config.yaml").write_text("optimizer: {schedule: wsd, decay_end_fractions: [0.2, 0.6, 1.0]}\n")
    found = study_points(load_study(tmp_path / "runs", "compare"), load_history(tmp_path / "runs", "compare"))
    assert (found["tokens"] / 4096).tolist() == [10, 30, 50]
    assert found["run"].nunique() == 1


def test_runs_that_diverged_or_maximise_are_no_points(write_run: Callable[..., Path], tmp_path: Path) -> None:
    write_run("decoder", 0, 2.4)
    write_run("decoder", 1, None, status="diverged")
    write_run("decoder", 0, 0.9, task="recall")
    found = study_points(load_study(tmp_path / "runs", "compare"), load_history(tmp_path / "runs", "compare"))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ponts=x"], 2, "did you mean 'points='?"),
        (["points=none.csv"], 2, "there is no such file"),
        (["points=x", "study=y"], 2, "choose one of the two"),
        (["drop=some"], 2, "drop=some must be a whole number"),
        (["bootstraps=3"], 2, "at least 40"),
        (["study=none"], 2, "study=none is not in"),
    ],
)
def test_mistakes_are_one_line_with_an_exit_code(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Model Size,Training FLOPs,loss\n1,2,3\n", "did you mean 'Training FLOPs'"),
        ("Model Size,Training FLOP,loss\n1e8,1e19,2\n1e8,-1,2\n", "line 3: size"),
        ("Model Size,Training FLOP,loss\n1e8,1e19,2\n", "a fit takes 6 points"),
        ("", "cannot be read as CSV"),
    ],
)
def test_bad_points_are_bad_data(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.csv").write_text(content)
    assert main([f"points={tmp_path / 'p.csv'}"]) == 3
    assert message in capsys.readouterr().err
