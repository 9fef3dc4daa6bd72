"""Estimates of memory against the simulated step, of hours and disk against arithmetic and a run."""

from __future__ import annotations

import dataclasses

import pytest

from archbench.experiments.run.estimate.resources import START_SECONDS, Resources, estimate
from archbench.experiments.run.estimate.stand_in import with_stand_in
from archbench.experiments.run.plan import plan
from archbench.experiments.simulate.step import simulate
from tests.experiments import commands
from tests.tiers import fast_only

WORDS = ("task=text", "task.sequence_length=128", "scale=micro", "budget.batch_size=8", "device=cpu")
RECOMPUTED = "parallel.activation_checkpointing=block"
CASES = {
    "decoder": (),
    "recomputed": (RECOMPUTED,),
    "low precision": ("device.precision=bf16",),
    "experts": ("backbone=moe",),
    "encoder-decoder": ("backbone=encoder_decoder",),
    "diffusion": ("backbone=masked_diffusion",),
    "state space": ("backbone=mamba2",),
    "linear attention": ("backbone=gla",),
    "large vocabulary": ("task.tokenizer.kind=bpe", "task.tokenizer.vocab_size=4096"),
}


def estimated(*words: str, processes: int | None = None) -> Resources:
    settings = commands.settings(*words)
    return estimate(settings, plan(settings), processes=processes)


@pytest.mark.parametrize("case", fast_only(list(CASES), ["recomputed", "experts"]))
def test_the_peak_is_within_a_tenth_of_the_simulated_one(case: str) -> None:
    settings = commands.settings(*WORDS, "parallel=fsdp", *CASES[case])
    planned = plan(settings)
    simulated = simulate(settings, planned, 4)
    found = estimate(settings, planned, processes=4)
    assert found.peak == pytest.approx(simulated.peak, rel=0.1)
    assert found.memory.weights == pytest.approx(simulated.memory["weights"], rel=0.05)
    assert found.memory.moments == pytest.approx(simulated.memory["moments"], rel=0.05)


def test_what_grows_with_the_sequences_and_what_does_not() -> None:
    words = (*WORDS, "device.precision=bf16", "parallel=fsdp")
    one, two, four = (
        estimated(*words, f"budget.micro_batch_size={rows}", processes=2).memory for rows in (1, 2, 4)
    )
    assert (one.micro_batches, two.micro_batches, four.micro_batches) == (4, 2, 1)
    assert one.weights == four.weights
    assert None not in (one.activations, two.activations, four.activations)
    assert four.activations - two.activations == 2 * (two.activations - one.activations)  # type: ignore[operator]
    assert four.activations < 4 * one.activations  # type: ignore[operator]


def test_one_process_has_everything_and_ddp_its_gradients_twice() -> None:
    alone = estimated(*WORDS)
    total = 4 * plan(commands.settings(*WORDS)).cost.parameters.total
    assert alone.memory.weights == alone.memory.gradients == total
    assert alone.memory.moments == pytest.approx(2 * total, rel=0.01)
    assert alone.memory.buffers == 0
    assert estimated(*WORDS, "parallel=ddp", processes=2).memory.buffers == total


def test_optimizers_keep_what_they_keep() -> None:
    adamw, muon, sgd, averaged = (
        estimated(*WORDS, *words).memory.moments
        for words in ((), ("optimizer=muon",), ("optimizer=sgd",), ("optimizer.ema=0.99",))
    )
    assert sgd < muon < adamw < averaged
    assert averaged == pytest.approx(1.5 * adamw, rel=0.01)


def test_hours_follow_from_the_stated_peak() -> None:
    words = (
        *WORDS,
        "budget.tokens=1_000_000_000_000",
        "parallel=fsdp",
        "parallel.nodes=2",
        "parallel.gpus_per_node=4",
    )
    assert estimated(*words).gpu_hours is None
    assert estimated(*words).time_limit is None
    found = estimated(*words, "device=h100", "device.mfu=0.5")
    flops = plan(commands.settings(*words)).cost.planned.flops
    assert found.processes == 8
    assert found.gpu_hours == pytest.approx(flops / (0.5 * 989e12) / 3600)
    assert found.seconds == pytest.approx(3600 * found.gpu_hours / 8)


@pytest.mark.parametrize(
    ("seconds", "limit"), [(1.0, "0-00:20:00"), (3600.0, "0-01:30:00"), (86400.0, "1-06:20:00")]
)
def test_a_time_limit_has_room_and_is_in_tens_of_minutes(seconds: float, limit: str) -> None:
    found = dataclasses.replace(estimated(*WORDS), seconds=seconds)
    assert found.time_limit == limit
    assert START_SECONDS == 900


def test_an_unknown_routing_leaves_activations_open() -> None:
    found = estimated(*WORDS, "backbone=moe", "backbone.experts.capacity_factor=1.5")
    assert found.memory.activations is None
    assert found.peak is None
    assert found.memory.weights > 0


def test_another_text_stands_in_for_a_dataset_that_is_not_prepared(tmp_path) -> None:
    words = ("task=fineweb_edu", f"task.cache_dir={tmp_path}", "device=cpu")
    settings, stands_in = with_stand_in(commands.settings(*words))
    assert stands_in
    assert (settings.task.source, settings.task.sequence_length) == ("embedded", 256)
    assert not with_stand_in(commands.settings(*WORDS))[1]
