"""The project without its optional parts: everything else is imported, trains and passes its tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.experiments.commands import SHORT_TEXT, TINY

DELETED = ("architectures/kernels", "architectures/pretrained")
IMPORT_ALL = """
import importlib, pkgutil
import archbench
names = [module.name for module in pkgutil.walk_packages(archbench.__path__, "archbench.")]
for name in names:
    importlib.import_module(name)
print(archbench.__file__, len(names))
"""
TESTS = (
    "tests/architectures/layers/attention/test_multi_head.py",
    "tests/architectures/layers/ssm/test_ssd.py",
    "tests/architectures/layers/test_positions.py",
    "tests/architectures/mixers",
    "tests/experiments/run/test_plan.py",
    "tests/experiments/run/test_size_solver.py",
    "tests/experiments/test_generate.py",
)


def copy_without_parts(folder: Path) -> None:
    """Copy the project, with its links, without the optional parts and their tests."""
    deleted = {ROOT / tests / part for tests in ("", "tests") for part in DELETED}

    def ignored(path: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "__pycache__" or Path(path, name) in deleted]

    for name in ("analysis", "architectures", "conf", "experiments", "slurm", "src", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)


@pytest.mark.full
def test_everything_else_works_without_kernels_and_pretrained_checkpoints(tmp_path: Path) -> None:
    copy_without_parts(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

    def python(*words: str, code: int = 0) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert python("-c", IMPORT_ALL).startswith(str(tmp_path / "src"))
    train = ("-m", "archbench.experiments.train", *TINY, *SHORT_TEXT, "runs=runs")
    python(*train, "-m", "backbone=decoder,mamba,hybrid")
    runs = sorted((tmp_path / "runs").rglob("provenance.json"))
    assert len(runs) == 3
    for run in runs:
        kernels = json.loads(run.read_text())["kernels"]
        assert set(kernels.values()) <= {"torch", "sdpa"}, kernels
    refused = python(*train, "backbone=mamba", "backbone.scan=cpp", code=2)
    assert "scan=cpp needs archbench.architectures.kernels, which is not installed: set scan=auto" in refused
    refused = python(*train, "backbone=decoder", "seed=1", "device.kernels=cpp", code=2)
    assert "(archbench.architectures.kernels is not installed): set kernels=auto" in refused
    written = python("-m", "archbench.experiments.export", f"run={runs[0].parent}", "to=exported", code=2)
    assert written.count("\n") == 1
    assert "archbench.architectures.pretrained is not installed" in written
    python("-m", "pytest", "-q", "--tier", "fast", "-p", "no:cacheprovider", *TESTS)
