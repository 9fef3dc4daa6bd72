"""A study, a model in a file, and the runs of the model by the rules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from archbench.analysis.submission.study import expected_runs, read_study
from archbench.experiments.tracking import provenance
from tests.experiments import commands

STUDY = """# @package _global_
defaults:
  - override /device: cpu
  - override /budget: smoke

study:
  name: toy
  tuned: ${runs}/toy_rates/analysis/rates.yaml
  fixed_grid: true
scale: {depth: 1, mixer_depth: 1, axis: non_embedding, targets: {non_embedding: 20_000}}
device: {threads: 1}
trainer: {validation_examples: 8, test_examples: 8, evaluate_every: 10}

hydra:
  mode: MULTIRUN
  sweeper:
    params:
      task: text,recall
      backbone: decoder
      seed: 0,1
"""
RATES = """# @package _global_
defaults:
  - toy
  - _self_

study:
  name: toy_rates
  tuned: null
trainer: {test_examples: 2}

hydra:
  sweeper:
    params:
      optimizer.learning_rate: 1e-3,1e-2
      seed: 100
"""
MODEL = ("backbone=my_toy.Toy", "task=text")


def train_by_rules(desk: Path, model: Sequence[str]) -> Path:
    """Train the runs that the study asks of a model, and return the last one."""
    words = (f"hydra.searchpath=[file://{desk}/conf]", *model, f"runs={desk}/runs")
    for rate in ("1e-3", "1e-2"):
        commands.train(*words, "study=toy_rates", f"optimizer.learning_rate={rate}", "seed=100")
    # Writes the learning rates.
    expected_runs(read_study("toy", f"{desk}/conf"), model, desk / "runs", desk / "runs")
    for seed in (0, 1):
        run = commands.train(*words, "study=toy", f"seed={seed}")
    return run


def forget_module() -> None:
    """Make the next import of the model that of another folder."""
    sys.modules.pop("my_toy", None)
    importlib.invalidate_caches()
    provenance._hash.cache_clear()
