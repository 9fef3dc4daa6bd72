"""The studies of published numbers compose, quote what they repeat, and a record names each."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import ListConfig, OmegaConf

from archbench.analysis.declared.records import read_records
from archbench.analysis.findings.published import Record
from archbench.experiments.config import CONF
from tests.experiments import commands

STUDIES = sorted(path.stem for path in (CONF / "study" / "reproduce").glob("*.yaml"))


@pytest.mark.parametrize("study", STUDIES)
def test_cells_compose_and_quote_what_they_repeat(study: str) -> None:
    """Not every cell, but enough to meet each swept value once."""
    yaml = OmegaConf.load(CONF / "study" / "reproduce" / f"{study}.yaml")
    assert yaml.study.name == study
    assert yaml.study.published
    params = OmegaConf.select(yaml, "hydra.sweeper.params") or {"seed": "0"}
    swept = {str(key): str(values).split(",") for key, values in params.items() if key != "seed"}
    for index in range(max(map(len, swept.values()), default=1)):
        words = [f"{key}={values[index % len(values)]}" for key, values in swept.items()]
        assert commands.settings(f"study=reproduce/{study}", "device=cpu", *words).study.name == study


ADAMW = {"optimizer.betas": [0.9, 0.999], "optimizer.clip_norm": None}
"""PyTorch's AdamW as it is, and no clipping."""
SOURCES: dict[str, dict[str, Any]] = {
    # configs/experiment/lra/s4-listops.yaml of state-spaces/s4: 120,000 steps, 12,000 of them warm-up.
    "listops backbone=s4_listops": ADAMW
    | {
        **{"backbone.num_layers": 6, "backbone.d_model": 256, "backbone.d_state": 4, "backbone.d_ff": 0},
        **{"backbone.num_systems": 1, "backbone.dt_min": 0.001, "backbone.dt_max": 0.1},
        **{"backbone.dt_rate_cap": None, "backbone.initialisation": "legs", "objective.pooling": "mean"},
        **{"optimizer.learning_rate": 0.01, "optimizer.weight_decay": 0.05},
        **{"optimizer.warmup_fraction": 12 / 120, "optimizer.min_lr_ratio": 0, "budget.batch_size": 32},
        **{"budget.tokens": 120_000 * 32 * 2000, "task.train_examples": 96_000},
    },
    # lra_benchmarks/listops of google-research/long-range-arena: configs/transformer_base.py and train.py.
    "listops backbone=encoder": {
        **{"backbone.num_layers": 4, "backbone.d_model": 512, "backbone.d_ff": 1024},
        **{"optimizer.betas": [0.9, 0.98], "optimizer.weight_decay": 0.1, "optimizer.clip_norm": None},
        **{"optimizer.warmup_fraction": 1000 / 5000, "budget.tokens": 5000 * 32 * 2000},
    },
    # configs/experiment/lra/s4-pathx.yaml: 500,000 steps, 50,000 of them warm-up.
    "path_x": ADAMW
    | {
        **{"backbone.num_layers": 6, "backbone.d_model": 256, "backbone.d_state": 64, "backbone.d_ff": 0},
        **{"backbone.num_systems": None, "backbone.dt_min": 0.0001, "backbone.dt_max": 0.1},
        **{"objective.pooling": "mean", "objective.real_values": True, "task.train_examples": 160_000},
        **{"optimizer.learning_rate": 0.001, "optimizer.weight_decay": 0.05, "optimizer.min_lr_ratio": 0},
        **{"optimizer.warmup_fraction": 50 / 500, "budget.tokens": 500_000 * 16 * 16_385},
    },
    # zoology/experiments/iclr24_zoology_figure2/configs.py of HazyResearch/zoology, with its train.py.
    "recall_full backbone=decoder backbone.d_model=64": ADAMW
    | {
        **{"task.num_symbols": 8192, "task.sequence_length": 64, "task.num_pairs": 4},
        **{"task.train_examples": 100_000, "budget.batch_size": 512, "budget.tokens": 64 * 100_000 * 64},
        **{"optimizer.weight_decay": 0.1, "optimizer.warmup_fraction": 0, "optimizer.min_lr_ratio": 0},
    },
    # mad/configs.py and configs/tasks/memorization.yml of athms/mad-lab: from 5e-4 to 1e-6.
    "mad task=memorization backbone=mamba": ADAMW
    | {
        **{"backbone.d_model": 128, "budget.batch_size": 128, "budget.tokens": 200 * 256 * 32},
        **{"optimizer.learning_rate": 5e-4, "optimizer.weight_decay": 0, "task.train_examples": 256},
        **{"optimizer.min_lr_ratio": 0.002, "optimizer.warmup_fraction": 0},
    },
    # The same with configs/tasks/noisy-in-context-recall.yml and mad/data/instances.py.
    "mad task=noisy_recall backbone=mamba": ADAMW
    | {
        **{"task.sequence_length": 128, "task.train_examples": 12_800, "task.show_answers": True},
        **{"objective.every_token": True, "budget.tokens": 200 * 12_800 * 128},
    },
    # arXiv 2312.00752, appendix E.1.
    "selective_copying_4096 backbone=mamba": {
        **{"task.sequence_length": 4096, "task.num_copied": 16, "backbone.d_model": 64},
        **{"optimizer.learning_rate": 1e-4, "optimizer.schedule": "constant", "optimizer.warmup_fraction": 0},
        **{"budget.batch_size": 64, "budget.tokens": 400_000 * 64 * 4096},
    },
    "induction_256 backbone=mamba": {
        **{"task.sequence_length": 256, "backbone.d_model": 64, "budget.batch_size": 8},
        **{"budget.tokens": 25 * 8192 * 8 * 256},
    },
    # config/train_shakespeare_char.py of karpathy/nanoGPT: 5,000 steps, 100 of warm-up, from 1e-3 to 1e-4.
    "shakespeare_gpu": {
        **{"backbone.num_layers": 6, "backbone.attention.num_heads": 6, "backbone.d_model": 384},
        **{"backbone.block.dropout": 0.2, "task.sequence_length": 256, "budget.batch_size": 64},
        **{"budget.tokens": 5000 * 64 * 256, "optimizer.warmup_fraction": 100 / 5000},
        **{"optimizer.learning_rate": 1e-3, "optimizer.min_lr_ratio": 0.1, "optimizer.clip_norm": 1.0},
        **{"optimizer.betas": [0.9, 0.99], "optimizer.weight_decay": 0.1},
    },
}
"""Settings of the sources, by hand, for each study and the words of one of its cells."""


@pytest.mark.parametrize("cell", SOURCES)
def test_settings_are_those_of_the_source(cell: str) -> None:
    found = commands.compose(*f"study=reproduce/{cell} device=cpu".split())
    chosen = {key: OmegaConf.select(found, key, throw_on_missing=True) for key in SOURCES[cell]}
    plain = {key: list(value) if isinstance(value, ListConfig) else value for key, value in chosen.items()}
    assert plain == SOURCES[cell]


def test_a_record_names_each_study() -> None:
    records = read_records(CONF.parent / "docs" / "results" / "published", Record)
    named = {word for record in records.values() for word in record.command.split()}
    assert {f"study=reproduce/{study}" for study in STUDIES} <= named
