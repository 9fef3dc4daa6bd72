"""A submission by the rules is accepted, and one that cannot be read is rejected with the reason."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from archbench.analysis.declared.runs import listed
from archbench.analysis.submission import study as study_module
from archbench.analysis.submission import submit
from archbench.analysis.submission.validate import ValidateConfig, main, reasons
from archbench.experiments.config.study import RULES
from tests import SOURCE
from tests.analysis.submission.toy_study import forget_module, train_by_rules
from tests.experiments import commands

EXAMPLES = commands.ROOT / "docs" / "submissions"
SHALLOW = "_target_: my_toy.Toy\nnum_layers: 1\nd_ff: 40\n"


@pytest.mark.full
def test_a_submission_by_the_rules_is_accepted(
    desk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert set(pd.read_parquet(folder / "results.parquet")["rules"]) == {RULES}
    monkeypatch.setattr(study_module, "listed", listed)
    code = main([str(folder), f"config_dir={desk}/conf", "run=/s1"])
    printed = capfd.readouterr()
    assert code == 0, printed
    assert printed.out.splitlines()[-1] == "accepted"


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_the_submissions_in_the_documentation_are_accepted(name: str) -> None:
    assert reasons(ValidateConfig(folder=str(EXAMPLES / name), retrain=False)) == []


@pytest.mark.full
def test_the_yaml_of_a_model_is_submitted(
    desk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where only the submission has it, and it may not be changed."""
    (desk / "conf" / "backbone").mkdir()
    (desk / "conf" / "backbone" / "shallow.yaml").write_text(SHALLOW)
    monkeypatch.setattr(study_module, "listed", listed)
    monkeypatch.setenv("PYTHONPATH", f"{desk}:{SOURCE}")
    monkeypatch.syspath_prepend(desk)
    model = ("backbone=shallow", "task=text")
    train_by_rules(desk, model)
    out = folder.parent / "shallow"
    arguments = ["study=toy", *model, "authors=A. Author", f"runs={desk}/runs", f"config_dir={desk}/conf"]
    assert submit.main([*arguments, f"out={out}"]) == 0
    shutil.rmtree(desk / "conf" / "backbone")
    forget_module()
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(desk)])
    config = ValidateConfig(folder=str(out), retrain=False, config_dir=f"{desk}/conf")
    assert reasons(config) == []
    forget_module()
    assert main([str(out), f"config_dir={desk}/conf", "run=/s0"]) == 0, capfd.readouterr()
    forget_module()
    edited = out / "configs" / "backbone" / "shallow.yaml"
    edited.write_text(SHALLOW.replace("40", "41"))
    assert reasons(config) == ["configs/backbone/shallow.yaml is not the file of submission.yaml"]
    record = yaml.safe_load((out / "submission.yaml").read_text())
    record["configs"]["backbone/shallow.yaml"] = hashlib.sha256(edited.read_bytes()).hexdigest()
    (out / "submission.yaml").write_text(yaml.safe_dump(record))
    assert any("is no run of the study" in line for line in reasons(config))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "it has no submission.yaml"),
        ({"score": 3}, "score: Submission has no such key"),
        ({"study": "recal_state"}, "there is no conf/study/recal_state.yaml"),
        ({"study": "recall_state"}, "there is no conf/study/recall_state_rates.yaml"),
    ],
)
def test_a_folder_that_cannot_be_read_is_rejected_with_the_reason(
    record: dict[str, object] | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if record is not None:
        honest = {"study": "compare", "overrides": ["backbone=decoder"], "authors": "A. Author"}
        (tmp_path / "submission.yaml").write_text(yaml.safe_dump(honest | record))
    assert main([str(tmp_path)]) == 3
    printed = capsys.readouterr().out
    assert reason in printed
    assert "Error" not in printed
    assert main([f"{tmp_path}/none"]) == 2


def check_one_error(capsys: pytest.CaptureFixture[str], reason: str) -> None:
    """Assert that one line was printed to stderr, with a reason."""
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name the folder of a submission"),
        (["submission.zip"], "unpack the submission"),
        (["submision"], "did you mean 'submission'?"),
    ],
)
def test_what_is_no_folder_is_one_error(
    words: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission.zip").touch()
    assert main(words) == 2
    check_one_error(capsys, reason)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param(
            ["study=track/cpu", "track/cpu=parity", "backbone=decoder"],
            "runs/ has no runs of",
            marks=pytest.mark.full,
        ),
        pytest.param(["study=compare", "backbone=decodr"], "did you mean 'decoder'?", marks=pytest.mark.full),
        (["study=capacity", "backbone=decoder"], "takes no submissions"),
    ],
)
def test_a_model_without_runs_is_not_submitted(
    words: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert submit.main([*words, "authors=A. Author"]) == 2
    check_one_error(capsys, reason)
    assert not (tmp_path / "submission").exists()
