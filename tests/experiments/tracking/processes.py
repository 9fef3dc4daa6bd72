"""Trackers in processes of their own, with a home folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests import ROOT, SOURCE

KEY = "mamba-recall-nano-ab12cd34-s0"
API_KEY = "canaryapikey" + "0123456789abcdef" * 2
RECORD = {
    "key": KEY, "study": "pilot", "cell": "mamba-recall-nano", "digest": "ab12cd34", "seed": 0,
    "backbone": "mamba", "objective": "causal_lm", "task": "recall", "scale": "nano",
}  # fmt: skip
PRELUDE = (
    f"""
import json, math, os, signal, sys, time
from pathlib import Path
from archbench.experiments.tracking import wandb as weights_and_biases
from archbench.experiments.tracking.tracker import RunIdentity, TrackingConfig, open_tracker
from tests.results import metric_row, result

FOLDER = Path(sys.argv[1])
RECORD = {RECORD!r}
IDENTITY = RunIdentity.of(result(RECORD))
"""
    + """
CONFIG = {
    "backbone": {"d_model": 64, "mixer": {"scan": {"chunk": 16, "kind": "plain"}}},
    "overrides": ["task=recall", "hub.token=canary-override"],
    "hub": {"api_key": "canary-config", "name": "visible-marker"},
}

def train(step, **more):
    return metric_row("train", step, **{"loss": 4.0 / (1 + step), "learning_rate": 0.003, **more})

def validation(step, **more):
    return metric_row("validation", step, **more)

def start(mode="offline", **more):
    return open_tracker(TrackingConfig(mode=mode, **more), IDENTITY, FOLDER, CONFIG,
                        {"parameters": {"body": 10}, "flops_per_token": 5.0, "fingerprint": "f" * 40})
"""
)


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return kept | {"HOME": str(home), "PYTHONPATH": str(SOURCE), "NETRC": str(home / "netrc")} | more


def child(folder: Path, body: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs ``body`` in a new process, with a home folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tests.run_code", PRELUDE + textwrap.dedent(body), str(folder), *arguments],
        env=environment(folder, **more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def started(folder: Path, body: str) -> subprocess.Popen[bytes]:
    """Start ``body`` in a new process, as ``child`` does, and leave it running."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.run_code", PRELUDE + textwrap.dedent(body), str(folder)],
        env=environment(folder),
        cwd=ROOT,
    )


def parts(folder: Path) -> list[Path]:
    """The .wandb files of a run folder, oldest first."""
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
