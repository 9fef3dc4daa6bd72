"""The runs of a sweep share a machine: their order, number at a time, threads, and the stated reason."""

import random
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra_plugins.hydra_joblib_launcher import _core
from omegaconf import DictConfig

from archbench.experiments.config import CONF
from archbench.experiments.config.hydra_app import start
from archbench.experiments.config.sweep import Parallel
from archbench.experiments.run.estimate.run_cost import estimate_cost
from archbench.experiments.run.planned import Planned
from archbench.experiments.run.sweep_schedule import GIB, RunCost, Schedule, arrange, make_schedule, makespan
from tests.experiments import commands

NANO = RunCost(flops=4e11, memory=0.5 * GIB, useful_threads=2)


def schedule(*costs: RunCost, cores: int = 16, memory: float = 64 * GIB, **more: int) -> Schedule:
    return make_schedule(costs, cores=cores, memory=memory, **{"threads": cores, **more})


@pytest.mark.parametrize(
    ("asked", "at_once", "threads", "limit"),
    [
        ({}, 16, 1, "16 cores"),
        ({"cores": 2}, 2, 1, "2 cores"),
        ({"cores": 1}, 1, 1, "1 core"),
        ({"memory": 2.6 * GIB}, 5, 2, "2.6 GiB of free memory, up to 0.5 GiB a run"),
        ({"memory": 0.2 * GIB}, 1, 2, "0.2 GiB of free memory, up to 0.5 GiB a run"),
        ({"n_jobs": 3}, 3, 2, "hydra.launcher.n_jobs=3"),
        ({"n_jobs": 3, "threads": 1}, 3, 1, "hydra.launcher.n_jobs=3"),
        ({"n_jobs": -2}, 15, 1, "16 cores (hydra.launcher.n_jobs=-2)"),
    ],
)
def test_cores_memory_and_settings_limit_the_runs(
    asked: dict[str, Any], at_once: int, threads: int, limit: str
) -> None:
    found = schedule(*[NANO] * 72, **asked)
    assert (found.at_once, found.threads, found.limit) == (at_once, threads, limit)


def test_fewer_runs_than_cores_get_as_many_threads_as_help() -> None:
    small = RunCost(useful_threads=40)
    assert [schedule(*[small] * runs).threads for runs in (1, 2, 3, 5, 8, 9, 40)] == [16, 8, 5, 3, 2, 1, 1]
    assert schedule(NANO).threads == 2
    assert schedule(*[small] * 2, threads=1).threads == 1  # OMP_NUM_THREADS


def test_runs_with_threads_of_their_own_take_as_many_cores() -> None:
    found = schedule(*[RunCost(threads=4)] * 9, NANO)
    assert (found.at_once, found.threads) == (4, 4)


def test_one_gpu_trains_one_run_at_a_time_unless_told_otherwise() -> None:
    gpu = RunCost(on_gpu=True)
    assert schedule(gpu, gpu).at_once == 1
    assert schedule(gpu, gpu, n_jobs=2).at_once == 2


def test_the_longest_begin_first_and_equal_ones_as_they_were() -> None:
    assert schedule(*[RunCost(flops=flops) for flops in (1, 3, 2, 3, 0)]).order == [1, 3, 2, 0, 4]


@pytest.mark.parametrize("cores", [2, 4, 8, 16, 32, 64])
def test_processes_end_together(cores: int) -> None:
    draw = random.Random(cores)
    for runs in (cores, 3 * cores, 72):
        seconds = [draw.lognormvariate(3, 0.6) for _ in range(runs)]
        ordered = [seconds[run] for run in schedule(*[RunCost(flops=each) for each in seconds]).order]
        bound = max(max(seconds), sum(seconds) / cores)
        assert makespan(ordered, cores) <= 1.1 * bound


@pytest.mark.parametrize(("cores", "most"), [(2, 1.02), (4, 1.02), (8, 1.05), (16, 1.02), (32, 1.02)])
def test_the_main_job_is_near_the_least_time_with_what_is_known_before_it(cores: int, most: float) -> None:
    """Its text, ordered by FLOPs, simulated with the seconds that the runs took."""
    runs = pd.read_parquet(CONF.parent / "docs" / "results" / "laptop.parquet")
    seconds = list(runs["training_seconds"])
    order = schedule(*[RunCost(flops=each) for each in runs["training_flops"]]).order
    bound = max(max(seconds), sum(seconds) / cores)
    assert makespan([seconds[run] for run in order], cores) <= most * bound
    assert makespan([seconds[run] for run in order], cores) < makespan(seconds, cores)


def test_seconds_of_runs_that_have_begun_count_where_they_run() -> None:
    assert makespan([10, 5], 2) == 10
    assert makespan([10, 5], 2, running=[3]) == 10
    assert makespan([10, 5], 2, running=[3, 6]) == 13


def test_a_larger_batch_takes_memory_and_makes_threads_useful() -> None:
    def cost(*words: str) -> RunCost:
        return estimate_cost(commands.settings("task=text", "task.sequence_length=256", *words))

    one, eight = cost("budget.batch_size=1"), cost("budget.batch_size=8")
    parts = cost("budget.batch_size=8", "budget.micro_batch_size=1")
    assert (one.useful_threads, eight.useful_threads, parts.useful_threads) == (1, 5, 1)
    assert one.memory == parts.memory < eight.memory
    assert one.flops == pytest.approx(eight.flops, rel=0.01)


def test_a_parallel_sweep_composes_each_cell_once_for_all_seeds_and_reorders_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    launched: list[Any] = []
    shown: list[Any] = []
    composed: list[str] = []

    def cost(cfg: DictConfig) -> RunCost:
        composed.append(f"{cfg.names.backbone} {cfg.budget.tokens}")
        return RunCost(flops=cfg.budget.tokens)

    def launch(launcher: Any, job_overrides: Any, initial_job_idx: int) -> list[Any]:
        launched.extend([launcher.joblib["n_jobs"], job_overrides])
        return []

    monkeypatch.setattr(_core, "launch", launch)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry point sets it; this takes it back
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["-m", "budget.tokens=1000,3000,2000", "seed=5,6", "backbone=decoder,mamba", f"runs={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["train", *words, "hydra/launcher=parallel", "hydra.launcher.n_jobs=3"])
    GlobalHydra.instance().clear()

    def show(costs: Any, runs: Any) -> Any:
        shown.extend(zip([cost.flops for cost in costs], runs, strict=True))
        return nullcontext()

    start(lambda cfg: None, parallel=Parallel(cost=cost, listed=cost, arrange=arrange, show=show))
    assert sorted(composed) == [f"{b} {n}" for b in ("decoder", "mamba") for n in (1000, 2000, 3000)]
    at_once, cells = launched
    assert at_once == 3
    tokens = [int(cell[0].removeprefix("budget.tokens=")) for cell in cells]
    assert tokens == sorted(tokens, reverse=True)
    assert len({tuple(cell) for cell in cells}) == 12
    assert shown == list(zip(tokens, cells, strict=True))  # the view has the runs that are started
    assert "12 runs, the longest first: 3 at a time, 1 thread each" in capsys.readouterr().out


def test_stages_begin_in_the_order_of_the_sweep_and_the_longest_of_each_first() -> None:
    def cost(stage: str, flops: float) -> RunCost:
        run = Planned(cell="c", backbone="b", seed=0, folder=Path("s0"), tokens=1, stage=stage)
        return RunCost(flops=flops, planned=run)

    found = schedule(cost("small", 1), cost("large", 9), cost("small", 2), cost("large", 10))
    assert found.order == [2, 0, 3, 1]
    assert "4 runs, the longest first of each of 2 stages: " in str(found)


def test_of_equal_runs_each_model_begins_before_the_next_seed() -> None:
    def cost(cell: str, seed: int, flops: float) -> RunCost:
        run = Planned(cell=cell, backbone="b", seed=seed, folder=Path(f"s{seed}"), tokens=1)
        return RunCost(flops=flops, planned=run)

    runs = [
        cost(cell, seed, flops)
        for cell, flops in (("a", 1e12), ("b", 1.01e12), ("c", 3e12))
        for seed in range(2)
    ]
    assert schedule(*runs).order == [4, 5, 2, 0, 3, 1]
