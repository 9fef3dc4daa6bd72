"""The script that builds the cuda extra stops at mistakes before it makes or downloads anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import ROOT

SCRIPT = ROOT / "tests" / "gpu" / "build_cuda_extra.sh"


def build(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [(), ("--help",), ("x", "9.0"), ("x", "sm_90"), ("x", "90", "y")])
def test_wrong_arguments_are_answered_with_the_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    done = build(*(tmp_path / word if word == "x" else word for word in words))
    assert done.returncode == 2
    assert done.stderr.startswith("usage: build_cuda_extra.sh FOLDER [CAPABILITY]")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_a_build_for_another_capability_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "capability").write_text("90\n")
    done = build(tmp_path, 80)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path} has a build for sm_90: name another folder for sm_80\n"
    assert [path.name for path in tmp_path.iterdir()] == ["capability"]
