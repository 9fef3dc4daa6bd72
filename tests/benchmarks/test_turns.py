"""The scripts that checkouts take turns in: their arithmetic by hand, and small runs of the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

FOLDER = ROOT / "benchmarks"


def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / name), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_ratio_is_the_median_over_pairs_of_steps() -> None:
    from nano import row

    own = [[0.01, 0.01], [0.02, 0.01], [0.01, 0.02]]
    other = [[0.03, 0.02], [0.02, 0.01], [0.02, 0.03]]  # 3, 1, 2 and 2, 1, 1.5 times as long
    assert row("s4", 100, [own, other]) == ["s4", "10,000", "5,000", "10.0", "2.00", "1.50"]
    assert row("s4", 100, [own]) == ["s4", "10,000", "10.0"]


@pytest.mark.full
def test_a_checkout_trains_beside_itself(tmp_path: Path) -> None:
    page = tmp_path / "nano.md"
    words = ["--models", "decoder", "--steps", "2", "--against", str(ROOT), "--output", str(page)]
    ended = script("nano.py", *words)
    assert ended.returncode == 0, ended.stderr
    assert page.read_text(encoding="utf-8") in ended.stdout + "\n"
    [line] = [line for line in ended.stdout.splitlines() if line.startswith("| decoder ")]
    assert len(line.split("|")) == 2 + 6


@pytest.mark.full
def test_the_first_step_is_timed_from_the_command() -> None:
    ended = script("first_step.py", "--starts", "1")
    assert ended.returncode == 0, ended.stderr
    [line] = [line for line in ended.stdout.splitlines() if line.startswith("| decoder ")]
    assert 0.1 < float(line.split("|")[3]) < 300


@pytest.mark.parametrize("name", ["nano.py", "first_step.py"])
def test_a_folder_that_is_no_checkout_is_refused(name: str, tmp_path: Path) -> None:
    ended = script(name, "--against", str(tmp_path))
    assert ended.returncode == 2
    assert f"{tmp_path}: no checkout" in ended.stderr
