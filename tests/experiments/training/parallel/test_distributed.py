"""Several processes that train one run do what one process does. The processes are real, over gloo."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archbench.experiments.training.checkpoints.stored_state import whole_tensors
from tests.experiments import commands
from tests.experiments.training.parallel.together import (
    STEPS,
    WORDS,
    Cases,
    ended,
    start_together,
    train_together,
)
from tests.tiers import fast_only

Case = tuple[str, tuple[str, ...]]
"""The name of a setting, and words on how it is divided."""
TOLERANCE = 1e-6
"""Of losses, relative, in float32: sums are taken in another order."""
SETTINGS = {
    **{family: (f"backbone={family}",) for family in commands.BACKBONES},
    "bias": ("backbone=moe_deepseek",),
    "few-experts": ("backbone=moe", "backbone.experts.num_experts=2", "backbone.experts.experts_per_token=1"),
    "micro-batches": (
        "backbone=decoder",
        f"budget.tokens={STEPS * 8 * 32}",
        "budget.batch_size=8",
        "budget.micro_batch_size=1",
    ),
    "average": ("backbone=decoder", "optimizer.ema=0.9"),
    "readout": (
        "backbone=encoder",
        "task=sentences",
        "task.sequence_length=32",
        "objective=sequence_classification",
        "objective.dropout=0",
        "optimizer.learning_rate=1e-3",  # with more the loss jumps, which amplifies rounding
    ),
    "given": (
        "backbone=decoder",
        "scale.targets=null",
        "backbone.d_model=32",
        "backbone.d_ff=64",
        "backbone.attention.num_kv_heads=4",
        "backbone.attention.output_gate=true",
        "optimizer.ema=0.9",
    ),
    "canon": (
        "backbone=decoder",
        "scale.targets=null",
        "backbone.d_model=32",
        "backbone.d_ff=64",
        "backbone.attention.num_kv_heads=4",
        "backbone.canon=ABCD",
    ),
    "forgetting": (
        "backbone=forgetting_attention",
        "scale.targets=null",
        "backbone.d_model=32",
        "backbone.d_ff=64",
        "backbone.attention.num_kv_heads=4",
        "optimizer.learning_rate=1e-3",  # as in "readout"
    ),
    "depths": (
        "backbone=mixture_of_depths",
        "scale.targets=null",
        "backbone.d_model=32",
        "backbone.d_ff=64",
        "backbone.attention.num_kv_heads=4",
        "optimizer.learning_rate=1e-3",  # as in "readout"
    ),
    "tied": ("backbone=decoder", "backbone.tie_embeddings=true"),
    "average-experts": ("backbone=moe", "optimizer.ema=0.9"),
    "learned": ("backbone=decoder", "backbone.positions.kind=learned"),
    "muon": ("backbone=decoder", "optimizer=muon"),
}
"""What is trained, by name."""
RECOMPUTED = ("parallel.activation_checkpointing=block",)
CUT = ("parallel=tensor",)
SHARED = ("parallel=ddp", "parallel.expert=2")
FSDP, DDP = ("parallel=fsdp",), ("parallel=ddp",)
TWO = [
    *((family, DDP) for family in commands.BACKBONES),
    *((family, FSDP) for family in commands.BACKBONES),
    *((name, DDP) for name in ("bias", "micro-batches", "readout", "tied")),
    *((name, FSDP) for name in ("few-experts", "micro-batches", "average", "readout", "forgetting", "depths",
                                "tied", "learned")),
    ("bias", (*FSDP, *RECOMPUTED)),
    ("encoder_decoder", (*FSDP, *RECOMPUTED)),
    *((name, CUT) for name in ("encoder", "given", "canon", "forgetting", "depths")),
    *((name, SHARED) for name in ("bias", "moe", "average-experts")),
    ("moe", (*FSDP, "parallel.expert=2")),
]  # fmt: skip
"""By two processes: each family by each strategy, and what divides otherwise than these."""
COMPILED = [
    (name, (*words, "trainer.compile=blocks"))
    for name, words in (("decoder", DDP), ("decoder", FSDP), ("given", CUT), ("moe", SHARED))
]
REPLICATED = (*FSDP, "parallel.replicate=2")
FOUR = [
    ("moe", SHARED),
    ("canon", CUT),
    ("moe", (*DDP, "parallel.expert=4")),
    ("given", (*FSDP, "parallel.tensor=4")),
    ("canon", (*REPLICATED, "parallel.tensor=2")),
    ("few-experts", FSDP),
    ("micro-batches", REPLICATED),
]
"""What four divide otherwise than two; more divisions are in ``HOPS``."""
RESUMED: dict[Case, int] = {("average", FSDP): 2, ("bias", SHARED): 1, ("given", CUT): 3}
"""Cases that are resumed, and after which step."""
LAST = (f"trainer.checkpoint_every={STEPS}",)
"""One checkpoint for a run that is not resumed."""
ROUNDED = ("device.precision=bf16",)
STACKS = ("decoder", "moe", "mamba", "s4", "deltanet", "falcon_h1")
"""Families of one stack, whose sums are taken in one order by one process and by several."""


def title(case: Case) -> str:
    name, words = case
    return "-".join([name, *(word.rpartition(".")[2].replace("parallel=", "") for word in words)])


def words_of(name: str) -> tuple[str, ...]:
    words = SETTINGS[name]
    return (*WORDS, *(() if any(word.startswith("task=") for word in words) else commands.RECALL), *words)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A setting trained by one process."""

    @functools.cache
    def trained(name: str) -> Path:
        return commands.train(*words_of(name), *LAST, f"runs={tmp_path_factory.mktemp('alone')}")

    return trained


def several(size: int, cases: list[Case], desk: Path) -> dict[str, Path]:
    named: Cases = {
        title(case): (*words_of(case[0]), *case[1], *(() if case in RESUMED else LAST)) for case in cases
    }
    return train_together(size, named, desk)


class Together:
    """Cases trained by several processes, when first asked for: those of the chosen tests in one start."""

    def __init__(self, size: int, request: pytest.FixtureRequest, desks: pytest.TempPathFactory) -> None:
        self.size, self.desks = size, desks
        used = (self.case_of(item, request) for item in request.session.items)
        self.chosen: list[Case] = [case for case in used if case is not None]
        self.folders: dict[str, Path] = {}

    @staticmethod
    def case_of(item: Any, request: pytest.FixtureRequest) -> Case | None:
        """Return the case of a chosen test of this fixture; None of any other test."""
        if item.path != request.path or request.fixturename not in item.fixturenames:
            return None
        case: Case | None = getattr(getattr(item, "callspec", None), "params", {}).get("case")
        return case

    def __call__(self, *cases: Case) -> dict[str, Path]:
        """Return the run folders of cases, by title."""
        if any(title(case) not in self.folders for case in cases):
            by_title = {title(case): case for case in (*self.chosen, *cases)}
            new = [case for name, case in by_title.items() if name not in self.folders]
            self.folders |= several(self.size, new, self.desks.mktemp("together"))
        return {title(case): self.folders[title(case)] for case in cases}


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together(2, request, tmp_path_factory)


@pytest.fixture(scope="module")
def four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together(4, request, tmp_path_factory)


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in commands.rows(folder) if row["kind"] == "train"]


def tensors(folder: Path, file: str) -> dict[str, torch.Tensor]:
    return whole_tensors(commands.newest_checkpoint(folder), file)


def check_same(found: Path, expected: Path, steps: int = STEPS) -> None:
    """The same run, but for rounding: losses, gradient norms, weights, moments, metrics."""
    assert len(losses(found)) == steps
    assert losses(found) == pytest.approx(losses(expected), rel=TOLERANCE)
    norms = [[row["grad_norm"] for row in commands.rows(f) if "grad_norm" in row] for f in (found, expected)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    result, other = commands.result(found), commands.result(expected)
    assert result["status"] == "complete"
    for metric, same in zip(result["metrics"], other["metrics"], strict=True):
        assert metric["value"] == pytest.approx(same["value"], rel=1e-4)
        totals, others = (each["cluster_totals"] for each in (metric, same))
        assert (totals is None) == (others is None)  # a metric that is no mean has none
        if totals is not None:
            assert np.array(totals) == pytest.approx(np.array(others), rel=1e-4)
        exact = [{**each, "value": 0, "standard_error": 0, "cluster_totals": []} for each in (metric, same)]
        assert exact[0] == exact[1]
    for file in ("model", "optimizer"):
        ours, theirs = tensors(found, file), tensors(expected, file)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            if name.endswith("k.bias"):
                continue  # softmax does not feel it: its gradient is rounding, which Adam makes a whole step
            torch.testing.assert_close(ours[name], tensor, atol=1e-4, rtol=1e-3, msg=f"{file}: {name}")


@pytest.mark.fast
@pytest.mark.parametrize("case", fast_only(TWO, [("average", FSDP)]), ids=title)
def test_two_processes_do_what_one_does(alone: Callable[[str], Path], two: Together, case: Case) -> None:
    """In the fast tier the only run by several processes is sharded, with an average of the weights."""
    expected = alone(case[0])  # first, so that what it imports is there in both
    (folder,) = two(case).values()
    check_same(folder, expected)
    processes = json.loads((folder / "provenance.json").read_text())["kernels"]["processes"]
    assert processes.startswith("2 processes, " + ("ddp" if "parallel=ddp" in case[1] else "fsdp"))


@pytest.mark.full
@pytest.mark.parametrize("case", [("muon", DDP), ("muon", FSDP)], ids=title)
def test_two_processes_do_what_one_does_with_muon(
    alone: Callable[[str], Path], two: Together, case: Case
) -> None:
    """To the bfloat16 in which Muon makes a matrix orthogonal: of whole matrices, not of the shards."""
    found, expected = losses(two(case)[title(case)]), losses(alone("muon"))
    assert len(found) == STEPS
    assert found == pytest.approx(expected, rel=5e-4)


@pytest.mark.full
def test_compiled_blocks_do_what_one_process_does_without(
    alone: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward are traced as for a compiler, and run without generating code (test_compile)."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    folders = several(2, COMPILED, tmp_path)
    for case in COMPILED:
        check_same(folders[title(case)], alone(case[0]))


@pytest.mark.full
def test_rounded_weights_are_those_of_autocast(alone: Callable[[str], Path], tmp_path: Path) -> None:
    """Gathered in bfloat16 by two processes, against autocast in one that computes the same rows at once.

    The first losses are equal but for sums in another order; what rounds differently later does not add up.
    """
    families = (*STACKS, "encoder_decoder")
    cases = [(family, (*FSDP, *ROUNDED)) for family in families]
    found = several(2, cases, tmp_path / "two")
    for family, case in zip(families, cases, strict=True):
        folder = found[title(case)]
        words = (*words_of(family), *ROUNDED, *LAST, "budget.micro_batch_size=2")
        expected = losses(commands.train(*words, f"runs={tmp_path / 'one'}"))
        assert losses(folder) == pytest.approx(expected, rel=5e-3), family
        if family in STACKS:
            assert losses(folder)[:2] == pytest.approx(expected[:2], rel=TOLERANCE), family
        plain = losses(alone(family))
        assert losses(folder) == pytest.approx(plain, rel=0.02), family
        assert losses(folder) != pytest.approx(plain, rel=TOLERANCE), family


@pytest.mark.full
@pytest.mark.parametrize("case", FOUR, ids=title)
def test_four_processes_do_what_one_does(alone: Callable[[str], Path], four: Together, case: Case) -> None:
    expected = alone(case[0])
    check_same(four(case)[title(case)], expected)


def test_blocks_computed_again_give_the_same_bits(alone: Callable[[str], Path], tmp_path: Path) -> None:
    """Losses of experts and counts of their tokens are not added twice."""
    again = commands.train(*words_of("bias"), *LAST, *RECOMPUTED, f"runs={tmp_path}")
    assert commands.untimed(again) == commands.untimed(alone("bias"))


def rewound(folder: Path, to: Path, step: int) -> Path:
    """A copy of a run as it stood after a step, in another folder of runs."""
    copy = to / folder.parents[1].name / folder.parent.name / folder.name
    shutil.copytree(folder, copy)
    rewind(copy, step)
    return copy


def rewind(folder: Path, step: int) -> None:
    """Put a run back to how it stood after a step."""
    (folder / "result.json").unlink()
    for path in (folder / "checkpoints").glob("step-*"):
        if int(path.name[5:]) > step:
            shutil.rmtree(path)


HOPS = {
    "average": ((4, FSDP), (2, FSDP), (4, REPLICATED), (1, ())),
    "given": ((2, CUT), (4, (*REPLICATED, "parallel.tensor=2")), (1, ()), (2, DDP)),
    "average-experts": ((2, SHARED), (1, ()), (4, (*REPLICATED, "parallel.expert=2")), (2, FSDP)),
}
"""Numbers of processes, and how they divide the run, one after the other; by setting."""


@pytest.mark.full
@pytest.mark.parametrize("name", HOPS)
def test_a_run_is_handed_from_one_division_to_the_next(
    alone: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Each goes on from the middle of what the one before did, at step 1, then 2, then 3."""
    words = (*words_of(name), f"runs={tmp_path / 'runs'}")
    folder = commands.settings(*words).folder
    for hop, (size, layout) in enumerate(HOPS[name]):
        if hop:
            rewind(folder, hop)
        train_together(size, {"on": (*words, *layout)}, tmp_path / f"desk{hop}")
    check_same(folder, alone(name))
    said = (folder / "train.log").read_text()
    assert all(f"resumed at step {step}" in said for step in (1, 2, 3))


@pytest.mark.full
def test_as_many_processes_resume_bit_for_bit(two: Together, tmp_path: Path) -> None:
    before = two(*RESUMED)
    copies, again = {}, {}
    for number, (case, step) in enumerate(RESUMED.items()):
        runs, name = tmp_path / str(number), title(case)
        copies[name] = rewound(before[name], runs, step)
        setting, words = case
        again[name] = (*words_of(setting), *words, f"runs={runs}")
    train_together(2, again, tmp_path / "desk")
    for name, copy in copies.items():
        assert commands.untimed(copy) == commands.untimed(before[name]), name
        for file in ("model", "optimizer"):
            ours, theirs = tensors(copy, file), tensors(before[name], file)
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs), name


@pytest.mark.full
def test_a_signal_to_one_process_stops_all_at_the_same_step(tmp_path: Path) -> None:
    steps = 20
    long = (*words_of("decoder"), f"budget.tokens={steps * 4 * 32}", "trainer.checkpoint_every=5")
    words = (*long, "parallel=fsdp", f"runs={tmp_path}")
    folder = commands.settings(*words).folder
    processes = start_together(2, *words)
    until = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.001)
    processes[1].send_signal(signal.SIGTERM)
    assert [code for code, _, _ in ended(processes, 300)] == [75, 75]
    stopped = commands.result(folder)
    assert stopped["status"] == "preempted"
    assert commands.newest_step(folder) == stopped["training"]["steps"] < steps
    commands.train(*words)  # by one process
    check_same(folder, commands.train(*long, f"runs={tmp_path / 'alone'}"), steps)
