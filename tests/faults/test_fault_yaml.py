"""F40: config.yaml of a run damaged in ways that a reader of YAML trips over."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.load.study import load_study
from archbench.experiments.check import check_study
from archbench.experiments.run.load_model import read_run
from archbench.experiments.run.resume_compatibility import check_config
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.upload import upload
from tests.experiments import commands
from tests.faults.children import in_a_child

WORDS = (*commands.TINY, *commands.RECALL)
DAMAGED = (
    "[" * 100_000,
    "- " * 100_000 + "1",
    "task: " + "[" * 100_000,
    "[1, 2",
    "- 1",
    "task: 7",
    "3",
    "\x00\x01",
    "task: {a: &x [*x]}",
    "",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.train(*WORDS, f"runs={tmp_path_factory.mktemp('trained')}")


@pytest.mark.full
def test_f40_a_damaged_configuration_is_one_clear_error_everywhere(
    trained: Path, tmp_path: Path, record: Any, capfd: Any
) -> None:
    """In a process of its own: libyaml ends one that gives it deeply nested text."""
    settings = commands.settings(*WORDS, f"runs={tmp_path}")
    shutil.copytree(trained, settings.folder)

    def work() -> None:
        for text in DAMAGED:
            print(repr(text[:20]), file=sys.stderr, flush=True)
            (settings.folder / "config.yaml").write_text(text)
            for read in (read_run, lambda folder: check_config(settings, folder)):
                with pytest.raises(ConfigError, match=r"config\.yaml|another|is none|has no"):
                    read(settings.folder)
            row = load_study(tmp_path, "single").iloc[0]
            assert row["status"] == "unreadable" or "config.yaml" in str(row["damaged"]), dict(row)
            assert check_study(tmp_path / "single").exit_code != 0
            assert upload(RunFolder(settings.folder), mode="offline") == "failed"

    assert in_a_child(work) == 0, capfd.readouterr().err[-3000:]
    injected = "config.yaml of another type, or nested deeply"
    record("F40", injected, len(DAMAGED), "exit 2 by name, said in every table")


def test_what_is_long_but_flat_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("".join(f"key{i}: {{a: [{i}]}}\n" for i in range(2000)))
    assert read_yaml(tmp_path / "config.yaml", "restore it")["key7"] == {"a": [7]}
