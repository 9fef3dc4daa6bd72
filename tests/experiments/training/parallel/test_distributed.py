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
QUICK = [
    *((name, FSDP) for name in ("encoder_decoder", "mamba", "s4", "average")),
    *((name, DDP) for name in ("decoder", "bias")),
    ("bias", (*FSDP, *RECOMPUTED)),
    ("bias", SHARED),
    ("given", CUT),
]
"""By two processes."""
EXACT = [name for name in SETTINGS if name != "muon"]
REST = [
    *((name, DDP) for name in EXACT),
    *((name, FSDP) for name in EXACT),
    ("encoder_decoder", (*FSDP, *RECOMPUTED)),
    ("encoder", CUT),
    ("canon", CUT),
    ("forgetting", CUT),
    ("depths", CUT),
    ("moe", SHARED),
    ("moe", (*FSDP, "parallel.expert=2")),
    ("average-experts", SHARED),
]
COMPILED = [
    (name, (*words, "trainer.compile=blocks"))
    for name, words in (("decoder", DDP), ("decoder", FSDP), ("given", CUT), ("moe", SHARED))
]
FULL = [*QUICK, *(case for case in REST if case not in QUICK)]
"""By two."""
REPLICATED = (*FSDP, "parallel.replicate=2")
FOUR = [
    ("bias", DDP),
    ("encoder_decoder", FSDP),
    ("mamba", FSDP),
    ("moe", SHARED),
    ("canon", CUT),
    ("moe", (*DDP, "parallel.expert=4")),
    ("given", (*FSDP, "parallel.tensor=4")),
    ("canon", (*REPLICATED, "parallel.tensor=2")),
    ("average", REPLICATED),
    ("few-experts", FSDP),
    ("micro-batches", REPLICATED),
    ("moe", (*REPLICATED, "parallel.expert=2")),
    ("given", (*REPLICATED, "parallel.tensor=2")),
]
"""What four divide otherwise than two, and one of each division that two have too."""
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
        return commands.train(*words_of(name), f"runs={tmp_path_factory.mktemp('alone')}")

    return trained


def several(size: int, cases: list[Case], desk: Path) -> dict[str, Path]:
    named: Cases = {title(case): (*words_of(case[0]), *case[1]) for case in cases}
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
def all_by_two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Together:
    """Apart from ``two``, so that no test waits for all of them."""
    return Together(2, request, tmp_path_factory)


@pytest.fixture(scope="module")
def four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together(4, request, tmp_path_factory)


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in commands.rows(folder) if row["kind"] == "train"]


def tensors(folder: Path, file: str) -> dict[str, torch.Tensor]:
    return whole_tensors(commands.newest_checkpoint(folder), file)


def check_same(found: Path, expected: Path) -> None:
    """The same run, but for rounding: losses, gradient norms, weights, moments, metrics."""
    assert len(losses(found)) == STEPS
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
def test_two_processes_under_fsdp_do_what_one_does(alone: Callable[[str], Path], tmp_path: Path) -> None:
    """The fast tier's only run by several processes: sharded, with an average of the weights."""
    case = ("average", FSDP)
    check_same(several(2, [case], tmp_path)[title(case)], alone("average"))


@pytest.mark.full
@pytest.mark.parametrize("case", QUICK, ids=title)
def test_two_processes_do_what_one_does(alone: Callable[[str], Path], two: Together, case: Case) -> None:
    (folder,) = two(case).values()
    check_same(folder, alone(case[0]))
    processes = json.loads((folder / "provenance.json").read_text())["kernels"]["processes"]
    assert processes.startswith("2 processes, " + ("ddp" if "parallel=ddp" in case[1] else "fsdp"))


@pytest.mark.full
@pytest.mark.parametrize("case", FULL[len(QUICK) :], ids=title)
def test_two_processes_do_what_one_does_in_all_ways(
    alone: Callable[[str], Path], all_by_two: Together, case: Case
) -> None:
    check_same(all_by_two(case)[title(case)], alone(case[0]))


@pytest.mark.full
@pytest.mark.parametrize("case", [("muon", DDP), ("muon", FSDP)], ids=title)
def test_two_processes_do_what_one_does_with_muon(
    alone: Callable[[str], Path], all_by_two: Together, case: Case
) -> None:
    """To the bfloat16 in which Muon makes a matrix orthogonal: of whole matrices, not of the shards."""
    found, expected = losses(all_by_two(case)[title(case)]), losses(alone("muon"))
    assert len(found) == STEPS
    assert found == pytest.approx(expected, rel=5e-4)


@pytest.mark.full
def test_compiled_blocks_do_what_one_process_does_without(
    alone: Callable[[str], Path], tmp_path: Path
) -> None:
    folders = several(2, COMPILED, tmp_path)
    for case in COMPILED:
        check_same(folders[title(case)], alone(case[0]))


@pytest.mark.full
def test_rounded_weights_are_those_of_autocast(tmp_path: Path) -> None:
    """Gathered in bfloat16 by two processes, against autocast in one that computes the same rows at once.

    The first losses are equal but for sums in another order; what rounds differently later does not add up.
    """
    families = (*STACKS, "encoder_decoder")
    cases = [(family, (*FSDP, *ROUNDED)) for family in families]
    found = several(2, cases, tmp_path / "two")
    for family, case in zip(families, cases, strict=True):
        folder = found[title(case)]
        words = (*words_of(family), *ROUNDED, "budget.micro_batch_size=2")
        expected = losses(commands.train(*words, f"runs={tmp_path / 'one'}"))
        assert losses(folder) == pytest.approx(expected, rel=5e-3), family
        if family in STACKS:
            assert losses(folder)[:2] == pytest.approx(expected[:2], rel=TOLERANCE), family
        plain = losses(commands.train(*words_of(family), f"runs={tmp_path / 'float32'}"))
        assert losses(folder) == pytest.approx(plain, rel=0.02), family
        assert losses(folder) != pytest.approx(plain, rel=TOLERANCE), family


@pytest.mark.full
@pytest.mark.parametrize("case", FOUR, ids=title)
def test_four_processes_do_what_one_does(alone: Callable[[str], Path], four: Together, case: Case) -> None:
    check_same(four(case)[title(case)], alone(case[0]))


def test_blocks_computed_again_give_the_same_bits(alone: Callable[[str], Path], tmp_path: Path) -> None:
    """Losses of experts and counts of their tokens are not added twice."""
    again = commands.train(*words_of("bias"), *RECOMPUTED, f"runs={tmp_path}")
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


@pytest.mark.full
@pytest.mark.parametrize("then", [(), (2,)], ids=["one", "two, one"])
def test_a_checkpoint_of_four_goes_on_with_fewer(
    alone: Callable[[str], Path], tmp_path: Path, then: tuple[int, ...]
) -> None:
    """Moments and averages go along. Four do what one does, from the first step to the last."""
    words = (*words_of("average"), "parallel=fsdp")
    begun = train_together(4, {"begun": words}, tmp_path / "desk4")["begun"]
    check_same(begun, alone("average"))
    for size in then:
        begun = rewound(begun, tmp_path / str(size), 5)
        train_together(size, {"on": (*words, f"runs={tmp_path / str(size)}")}, tmp_path / f"desk{size}")
        check_same(begun, alone("average"))
    last = rewound(begun, tmp_path / "one", 10)
    commands.train(*words_of("average"), f"runs={tmp_path / 'one'}")
    check_same(last, alone("average"))


@pytest.mark.full
def test_a_checkpoint_of_two_goes_on_with_four(
    alone: Callable[[str], Path], two: Together, tmp_path: Path
) -> None:
    begun = rewound(two(("average", FSDP))["average-fsdp"], tmp_path / "four", 5)
    words = (*words_of("average"), "parallel=fsdp", f"runs={tmp_path / 'four'}")
    train_together(4, {"on": words}, tmp_path / "desk")
    check_same(begun, alone("average"))


HOPS = {
    "average": ((1, ()), (2, FSDP), (4, REPLICATED), (1, ())),
    "given": ((2, CUT), (4, (*REPLICATED, "parallel.tensor=2")), (1, ()), (2, DDP)),
    "average-experts": ((2, SHARED), (1, ()), (4, (*REPLICATED, "parallel.expert=2")), (2, FSDP)),
}
"""Numbers of processes, and how they divide the run, one after the other; by setting."""


@pytest.mark.full
@pytest.mark.parametrize("name", HOPS)
def test_a_run_is_handed_from_one_division_to_the_next(
    alone: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Each goes on from the middle of what the one before did, at step 5, then 10, then 15."""
    words = (*words_of(name), f"runs={tmp_path / 'runs'}")
    folder = commands.settings(*words).folder
    for hop, (size, layout) in enumerate(HOPS[name]):
        if hop:
            rewind(folder, 5 * hop)
        train_together(size, {"on": (*words, *layout)}, tmp_path / f"desk{hop}")
    check_same(folder, alone(name))
    said = (folder / "train.log").read_text()
    assert all(f"resumed at step {step}" in said for step in (5, 10, 15))


@pytest.mark.full
def test_as_many_processes_resume_bit_for_bit(two: Together, tmp_path: Path) -> None:
    cases: dict[Case, int] = {("average", FSDP): 10, ("bias", SHARED): 5, ("given", CUT): 15}
    before = two(*cases)
    copies, again = {}, {}
    for number, (case, step) in enumerate(cases.items()):
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
def test_a_signal_to_one_process_stops_all_at_the_same_step(
    alone: Callable[[str], Path], tmp_path: Path
) -> None:
    words = (*words_of("decoder"), "parallel=fsdp", f"runs={tmp_path}")
    folder = commands.settings(*words).folder
    processes = start_together(2, *words)
    until = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.001)
    processes[1].send_signal(signal.SIGTERM)
    assert [code for code, _, _ in ended(processes, 300)] == [75, 75]
    stopped = commands.result(folder)
    assert stopped["status"] == "preempted"
    assert commands.newest_step(folder) == stopped["training"]["steps"] < STEPS
    commands.train(*words)  # by one process
    check_same(folder, alone("decoder"))
