"""A submission by the rules, made once, and a copy of it to be edited."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from archbench.analysis.declared.runs import listed
from archbench.analysis.submission import study as study_module
from archbench.analysis.submission import submit
from tests import SOURCE
from tests.analysis.submission.toy_study import MODEL, RATES, STUDY, forget_module, train_by_rules
from tests.experiments import commands
from tests.experiments.test_toy_backbone import PYTHON


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study, a model in a file, its runs by the rules and their submission.

    The folder ``other`` has one trial more, and a test run with the rate of another trial.
    """
    desk = tmp_path_factory.mktemp("desk")
    for name, text in {"toy.yaml": STUDY, "toy_rates.yaml": RATES}.items():
        (desk / "conf" / "study").mkdir(parents=True, exist_ok=True)
        (desk / "conf" / "study" / name).write_text(text)
    (desk / "my_toy.py").write_text(PYTHON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{desk}:{SOURCE}")
        patch.setattr(sys, "path", [str(desk), *sys.path])
        forget_module()
        words = (f"hydra.searchpath=[file://{desk}/conf]", *MODEL)
        other = ("study=toy_rates", "optimizer.learning_rate=3e-3", "seed=100", f"runs={desk}/other")
        commands.train(*words, *other)
        chosen = train_by_rules(desk, MODEL)
        best = yaml.safe_load((chosen / "config.yaml").read_text())["optimizer"]["learning_rate"]
        rate = 0.001 if best == 0.01 else 0.01
        untuned = ("study.tuned=null", f"optimizer.learning_rate={rate}", "seed=0", f"runs={desk}/other")
        commands.train(*words, "study=toy", *untuned)
        arguments = ["study=toy", *MODEL, "authors=A. Author", f"runs={desk}/runs", f"config_dir={desk}/conf"]
        assert submit.main([*arguments, f"out={desk}/submission"]) == 0
    return desk


LISTED: dict[tuple[str, ...], pd.DataFrame] = {}


def listed_once(words: list[str]) -> pd.DataFrame:
    """``listed``, whose subprocess runs once for equal overrides and learning rates."""
    key = tuple(
        Path(word.partition("=")[2]).read_text() if word.startswith("study.tuned=") else word
        for word in words
        if not word.startswith("runs=")
    )
    if key not in LISTED:
        LISTED[key] = listed(words)
    return LISTED[key]


@pytest.fixture
def folder(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the submission, to be edited."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(study_module, "listed", listed_once)
    forget_module()
    shutil.copytree(desk / "other", tmp_path / "other")
    return Path(shutil.copytree(desk / "submission", tmp_path / "submission"))
