"""Hydra's options may stand anywhere on the command line, and each documented key of a study can be set."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from experiments.config.hydra_app import start
from experiments.config.schema import STUDY_KEYS
from experiments.config.sections import read_tree
from tests.experiments import commands


@pytest.mark.parametrize(
    "words",
    [
        "-m seed=1,2 scale=micro",
        "seed=1,2 scale=micro -m",
        "seed=1,2 -m scale=micro",
        "seed=1,2 --multirun --config-name config scale=micro",
    ],
)
def test_options_stand_before_between_and_after_overrides(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry point sets it; this takes it back
    monkeypatch.setattr(sys, "argv", ["train", f"runs={tmp_path}", *words.split(), "hydra/launcher=basic"])
    GlobalHydra.instance().clear()
    composed: list[tuple[int, str]] = []
    start(lambda cfg: composed.append((cfg.seed, cfg.names.scale)))
    assert composed == [(1, "micro"), (2, "micro")]


def test_every_documented_key_of_a_study_is_set_without_a_plus() -> None:
    page = (commands.ROOT / "docs" / "how-to" / "study.md").read_text()
    assert set(re.findall(r"^\| `study\.(\w+)`", page, flags=re.MULTILINE)) == set(STUDY_KEYS)
    for key in STUDY_KEYS:
        assert read_tree(commands.compose(f"study.{key}=x"))["study"] == {"name": "single", key: "x"}
    assert read_tree(commands.compose())["study"] == {"name": "single"}, "what is not asked for is left out"
