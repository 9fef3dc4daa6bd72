"""A simulated step against arithmetic, and against real processes that exchange the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from archbench.architectures.layers.ssm import selective_scan
from archbench.experiments.run.plan import plan
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.simulate.step import PARTS, Simulation, simulate
from archbench.experiments.simulate.traffic import Exchange
from archbench.experiments.training.parallel import strategy
from tests.experiments import commands
from tests.experiments.simulate.real_step import steps
from tests.experiments.training.parallel.together import found_together

WORDS = ("task=text", "task.sequence_length=64", "budget=smoke", "budget.batch_size=8", "device=cpu")
SHARDED = (*WORDS, "parallel=fsdp")


def simulated(processes: int, *words: str) -> Simulation:
    settings = commands.settings(*words)
    return simulate(settings, plan(settings), processes)


@pytest.mark.parametrize("processes", [2, 16])
def test_weights_and_moments_are_divided(processes: int) -> None:
    settings = commands.settings(*SHARDED, "budget.batch_size=16")
    planned = plan(settings)
    found = simulate(settings, planned, processes)
    weights = 4 * planned.cost.parameters.total
    assert set(found.memory) == set(PARTS)
    assert found.memory["weights"] == pytest.approx(weights / processes, rel=0.1)
    assert found.memory["moments"] == pytest.approx(2 * weights / processes, rel=0.1)
    assert found.peak == sum(found.memory.values())


def test_sharding_exchanges_weights_twice_and_gradients_once() -> None:
    planned = plan(commands.settings(*SHARDED))
    traffic = simulated(2, *SHARDED).traffic
    weights = 4 * planned.cost.parameters.total
    assert traffic["reduce-scatter"] == pytest.approx(weights, rel=0.02)
    assert weights < traffic["all-gather"] <= 2 * weights * 1.02


def test_data_parallel_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose parallel=fsdp"):
        simulated(4, *WORDS)


def test_micro_batches_save_activations_and_cost_traffic() -> None:
    whole, parts = (simulated(2, *SHARDED, f"budget.micro_batch_size={size}") for size in (4, 1))
    assert (whole.micro_batches, parts.micro_batches) == (1, 4)
    assert parts.memory["activations"] < whole.memory["activations"] / 2
    assert parts.traffic["reduce-scatter"] == 4 * whole.traffic["reduce-scatter"]


def test_replicas_add_gradients_up_once_a_step() -> None:
    words = (*WORDS, "parallel=fsdp", "parallel.replicate=2", "budget.batch_size=16")
    whole, parts = (simulated(4, *words, f"budget.micro_batch_size={size}") for size in (4, 1))
    between = [found.exchanged[Exchange(kind="all-reduce", ranks=(0, 2))] for found in (whole, parts)]
    assert between[0] == between[1] > 0
    assert parts.traffic["reduce-scatter"] == 4 * whole.traffic["reduce-scatter"]


def test_recomputed_blocks_keep_less() -> None:
    kept, recomputed = (
        simulated(2, *SHARDED, f"parallel.activation_checkpointing={where}") for where in ("none", "block")
    )
    assert recomputed.memory["activations"] < kept.memory["activations"]


@pytest.mark.parametrize("backbone", ["mamba", "s4", "gated_deltanet"])
def test_scans_run_without_compiled_kernels(backbone: str) -> None:
    assert simulated(2, *SHARDED, f"backbone={backbone}").memory["activations"] > 0


def test_a_stated_gpu_scans_in_the_chunks_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    chunks = selective_scan._chunks
    monkeypatch.setattr(selective_scan, "CHUNK_NUMBERS", 1)
    monkeypatch.setattr(
        selective_scan, "_chunks", lambda length, size: lengths.append(size) or chunks(length, size)
    )
    simulated(2, *SHARDED, "backbone=mamba", "task.sequence_length=8")  # each place is a chunk
    assert set(lengths) == {1}
    lengths.clear()
    simulated(2, *SHARDED, "backbone=mamba", "device=h100")
    assert min(lengths) >= 64
    assert selective_scan._chunk_length(torch.zeros(2)) == 1


def test_experts_are_simulated_as_if_each_had_equally_many_tokens() -> None:
    dense, routed = (simulated(2, *SHARDED, f"backbone={name}") for name in ("decoder", "moe"))
    assert routed.memory["activations"] > dense.memory["activations"] / 2
    assert "all-to-all" not in routed.traffic


FEW = ("backbone=moe", "backbone.experts.num_experts=2", "backbone.experts.experts_per_token=1")


def test_a_stack_of_few_experts_is_not_padded_to_an_expert_for_each_process() -> None:
    width = "backbone.d_model=64"
    words = (*SHARDED, *FEW, "scale.targets=null", width, "budget.batch_size=16")
    two, sixteen = (simulated(processes, *words) for processes in (2, 16))
    assert sixteen.traffic["all-gather"] == pytest.approx(two.traffic["all-gather"], rel=0.05)
    assert sixteen.memory["weights"] == pytest.approx(two.memory["weights"] / 8, rel=0.1)


def test_what_would_be_padded_many_times_over_is_refused_with_the_groups_that_divide_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategy, "LARGE", 1000)
    width = ("backbone.d_model=48", "backbone.d_ff=72")
    words = (*SHARDED, *FEW, "scale.targets=null", *width, "budget.batch_size=64", "budget.tokens=8192")
    with pytest.raises(
        ConfigError, match=r"64 processes cannot divide .* without padding it to 64 rows; with"
    ):
        simulated(64, *words)
    assert simulated(64, *words, "parallel.replicate=4").traffic["all-gather"] > 0


def test_tokens_travel_to_experts_of_other_processes_and_back() -> None:
    words = (*SHARDED, "backbone=moe", "scale.depth=3")
    whole, shared = (simulated(2, *words, f"parallel.expert={parts}") for parts in (1, 2))
    settings = commands.settings(*words)
    config = plan(settings).matched.config
    rows, length, layers = 4, 64, 3
    pairs = rows * length * config.experts.experts_per_token  # type: ignore[attr-defined]
    counts = 8 * config.experts.num_experts  # type: ignore[attr-defined]
    moved = 4 * pairs * config.width * 4  # there and back, forward and backward, in float32
    assert shared.traffic["all-to-all"] == layers * (moved + counts)
    assert shared.traffic["all-gather"] < whole.traffic["all-gather"]


def test_a_capacity_of_experts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backbone.experts.capacity_factor=null"):
        simulated(2, *SHARDED, "backbone=moe", "backbone.experts.capacity_factor=1.5")


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_real_processes_take_the_bytes_that_were_simulated(processes: int, tmp_path: Path) -> None:
    """Compare the bytes exchanged to the last one, and the bytes held within a tenth."""
    names = ("decoder", "mamba2", "masked_diffusion")
    cases = {name: commands.settings(*SHARDED, f"backbone={name}") for name in names}
    found = found_together(
        processes, tmp_path, lambda: {name: steps(settings) for name, settings in cases.items()}
    )
    for name, settings in cases.items():
        traffic, peak = found[name]
        expected = simulate(settings, plan(settings), processes)
        assert traffic == expected.traffic, name
        assert peak == pytest.approx(expected.peak, rel=0.1), name


def test_the_command_prints_memory_and_traffic() -> None:
    ended = commands.run("simulate", "processes=2,4", *SHARDED)
    assert ended.returncode == 0, ended.stderr
    assert "Memory of one process at the peak" in ended.stdout
    assert "reduce-scatter" in ended.stdout


def test_the_command_prints_milliseconds_for_a_gpu_whose_links_are_stated(tmp_path: Path) -> None:
    words = (*(word for word in SHARDED if word != "device=cpu"), "device=h100", "parallel.gpus_per_node=2")
    ended = commands.run("simulate", "processes=4", f"output={tmp_path / 'rows'}", *words)
    assert ended.returncode == 0, ended.stderr
    assert "Milliseconds of a step, at best" in ended.stdout
    (row,) = json.loads((tmp_path / "rows").read_text())
    planned = plan(commands.settings(*words)).cost.planned
    flops = planned.flops / planned.steps / 4
    assert row["seconds"]["computing"] == pytest.approx(flops / (0.4 * 989e12))
    # Four processes on two nodes: a node's two adapters send 100 GB a second.
    assert row["seconds"]["exchanging"] == pytest.approx(
        sum(size * (2 if kind == "all-reduce" else 1) for kind, size in row["traffic"].items())
        * 3
        / 4
        / 100e9
    )


def test_one_process_is_no_simulation() -> None:
    ended = commands.run("simulate", "processes=1", *SHARDED)
    assert (ended.returncode, ended.stderr) == (
        2, "error: processes=1: give numbers of two or more, as in processes=8,64\n",
    )  # fmt: skip
