"""The answer so far: what ``archbench train`` prints after each stage of a study."""

from pathlib import Path

import pytest

from archbench.analysis import answer
from tests.results import write_result


def write_runs(runs: Path, *scales: str) -> None:
    """Write three seeds of two models at each scale, of which Mamba is better."""
    for scale in scales:
        for model, score in (("decoder", 2.5), ("mamba", 2.0)):
            for seed in range(3):
                folder = runs / "mine" / f"{model}-text-{scale}-ab12cd34" / f"s{seed}"
                folder.mkdir(parents=True)
                metric = {"value": score + 0.01 * seed}
                write_result(folder, {"backbone": model, "scale": scale, "metrics": [metric]})


def test_the_answer_names_the_better_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(tmp_path, "small")
    assert answer.main(["study=mine", f"runs={tmp_path}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("text, small, exact likelihoods: mamba wins with 2.010 ")
    assert "decoder by 0.500" in printed


def test_a_study_without_runs_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer.main(["study=mine", f"runs={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
