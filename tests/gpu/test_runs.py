"""Whole runs on a GPU: started by torchrun, resumed after a signal, and the main comparison in small."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests import ROOT
from tests.experiments import commands

pytestmark = pytest.mark.gpu


def words(device: torch.device, runs: Path, *more: str) -> list[str]:
    given = [word for word in commands.TINY if not word.startswith("device")]
    return [*given, f"device={device.type}", *commands.SHORT_TEXT, f"runs={runs}", *more]


def trained(device: torch.device, runs: Path, *more: str, launcher: tuple[str, ...] = ()) -> dict:
    """The result of a run in a process of its own."""
    command = [
        sys.executable,
        *(launcher or ("-m",)),
        "archbench.experiments.train",
        *words(device, runs, *more),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = runs.glob("*/*/s0/result.json")
    return json.loads(found.read_text())


def score(result: dict) -> float:
    """Bits per byte of the test split."""
    assert result["metrics"][0]["name"] == "bits_per_byte"
    return result["metrics"][0]["value"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_by_torchrun_on_one_gpu_is_the_run_without(
    precision: str, device: torch.device, tmp_path: Path
) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m")
    more = ("backbone=decoder", f"device.precision={precision}")
    plain = trained(device, tmp_path / "plain", *more)
    sharded = trained(device, tmp_path / "sharded", *more, "parallel=fsdp", launcher=launcher)
    limit = 1e-3 if precision == "fp32" else 0.05
    assert sharded["status"] == plain["status"] == "complete"
    assert score(sharded) == pytest.approx(score(plain), abs=limit)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("backbone", ["decoder", "mamba", "moe"])
def test_a_run_that_is_stopped_goes_on_to_the_same_result(
    backbone: str, deterministic: bool, device: torch.device, tmp_path: Path
) -> None:
    """To rounding, as a GPU may take sums in another order each time; bit for bit in deterministic mode."""
    more = (
        f"backbone={backbone}",
        "budget.tokens=65536",
        "trainer.checkpoint_every=20",
        f"device.deterministic={deterministic}",
    )
    whole = trained(device, tmp_path / "whole", *more)
    runs = tmp_path / "stopped"
    process = subprocess.Popen(
        [sys.executable, "-m", "archbench.experiments.train", *words(device, runs, *more)], cwd=ROOT
    )
    end = time.monotonic() + 300
    while process.poll() is None and not list(runs.glob("*/*/s0/checkpoints/step-*")):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) in (75, 0)
    resumed = trained(device, runs, *more)
    assert resumed["training"]["steps"] == whole["training"]["steps"]
    assert score(resumed) == pytest.approx(score(whole), abs=0.0 if deterministic else 0.05)


@pytest.mark.parametrize("study", ["compare", "infilling"])
def test_the_main_comparison_runs(study: str, device: torch.device, tmp_path: Path) -> None:
    """The three commands of ``make compare``, with little training."""
    small = [
        f"study={study}", "seed=0", f"device={device.type}", f"runs={tmp_path}", "budget.tokens=20480",
        "trainer.validation_examples=8", "trainer.test_examples=16", "hydra/launcher=basic",
    ]  # fmt: skip
    for module in ("archbench.experiments.plan", "archbench.experiments.train"):
        command = [sys.executable, "-m", module, *small]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    command = [sys.executable, "-m", "archbench.analysis.compare", f"study={study}", f"runs={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    results = [json.loads(path.read_text()) for path in tmp_path.glob(f"{study}/*/s0/result.json")]
    assert results
    assert {result["status"] for result in results} == {"complete"}
