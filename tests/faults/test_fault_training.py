"""F19 to F22: losses that are no numbers, losses that jump, memory that runs out."""

from __future__ import annotations

import json
import math
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM
from archbench.experiments.runtime.errors import DivergedError, OutOfMemoryError, is_out_of_memory
from archbench.experiments.training.loss import MOST_IN_A_ROW, MOST_IN_ALL, WINDOW, LossAnomalies
from archbench.experiments.training.micro_batcher import MicroBatcher
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands
from tests.faults.children import in_a_child

WORDS = (*commands.TINY, *commands.RECALL, "trainer.log_every=1", "trainer.checkpoint_every=1")
SKIP = (*WORDS, "trainer.non_finite=skip")


def disturb(monkeypatch: pytest.MonkeyPatch, factor: Callable[[int], float]) -> None:
    """Multiplies the loss of each training step, by its number from 1."""
    honest, gradients = CausalLM.loss, Trainer._gradients
    now = {"factor": 1.0}

    def loss(self: CausalLM, output: Any, view: Any) -> Any:
        total, count = honest(self, output, view)
        return (total * now["factor"], count)

    def step(self: Trainer, view: Any, count: Any, size: int) -> Any:
        now["factor"] = factor(self.state.step + 1)
        return gradients(self, view, count, size)

    monkeypatch.setattr(CausalLM, "loss", loss)
    monkeypatch.setattr(Trainer, "_gradients", step)


def bad_at(*steps: int, value: float = math.nan) -> Callable[[int], float]:
    return lambda step: value if step in steps else 1.0


def folder_of(words: tuple[str, ...], tmp_path: Path) -> Path:
    return commands.settings(*words, f"runs={tmp_path}").folder


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("backbone", ["decoder", "moe_deepseek"])
def test_f19_a_skipped_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: str, value: float, record: Any
) -> None:
    disturb(monkeypatch, bad_at(7, value=value))
    words = (*SKIP, f"backbone={backbone}", "trainer.keep_checkpoints=40")
    folder = commands.train(*words, f"runs={tmp_path}")
    before, after = (
        load_file(folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors") for step in (6, 7)
    )
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), f"{name} has moved"
    moments = [
        load_file(folder / "checkpoints" / f"step-{step:08d}" / "optimizer.safetensors") for step in (6, 7)
    ]
    assert all(torch.equal(tensor, moments[1][name]) for name, tensor in moments[0].items())
    found = commands.result(folder)
    assert (found["status"], found["training"]["skipped_steps"]) == ("complete", 1)
    dumped = json.loads((folder / "failures" / "step-00000007.json").read_text())
    assert dumped["examples"] == {"split": "train", "start": 24, "count": 4}
    assert dumped["config"]["optimizer"]["clip_norm"] == 1.0
    assert dumped["gradients_not_finite"]
    losses = [row["loss"] for row in commands.rows(folder) if row["kind"] == "train"]
    assert losses[6] == "nan"
    assert all(isinstance(loss, float) for step, loss in enumerate(losses) if step != 6)
    record(
        "F19",
        f"loss {value} at one step of {backbone}, policy skip",
        1,
        "weights and moments bitwise unchanged",
    )


def test_f19_a_run_that_stops_can_be_repeated_from_the_step_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    disturb(monkeypatch, bad_at(13))
    words = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=10")
    with pytest.raises(DivergedError, match="loss is nan at step 13") as first:
        commands.train(*words, f"runs={tmp_path}")
    folder = folder_of(words, tmp_path)
    assert commands.newest_step(folder) == 12
    dumped = (folder / "failures" / "step-00000013.json").read_text()
    (folder / "result.json").unlink()
    with pytest.raises(DivergedError) as again:
        commands.train(*words, f"runs={tmp_path}")
    assert str(again.value) == str(first.value)
    assert (folder / "failures" / "step-00000013.json").read_text() == dumped
    record("F19", "loss nan, policy stop, then repeated", 2, "exit 4 both times, at the same step")


@pytest.mark.parametrize(
    ("steps", "ends", "said"),
    [
        (range(5, 5 + MOST_IN_A_ROW), None, ""),
        (range(5, 6 + MOST_IN_A_ROW), 10, "5 steps in a row"),
        (range(1, 31, 2), None, ""),
    ],
)
def test_f19_only_so_many_steps_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: range, ends: int | None, said: str
) -> None:
    disturb(monkeypatch, bad_at(*steps))
    if ends is None:
        folder = commands.train(*SKIP, f"runs={tmp_path}")
        assert commands.result(folder)["training"]["skipped_steps"] == len(steps)
    else:
        with pytest.raises(DivergedError, match=f"at step {ends}; {said}"):
            commands.train(*SKIP, f"runs={tmp_path}")


def test_f19_and_only_so_many_in_all() -> None:
    anomalies = LossAnomalies()
    for _ in range(MOST_IN_ALL):
        anomalies.skip("loss is nan", "skip")
        anomalies.record_loss(1.0)
    with pytest.raises(DivergedError, match="20 steps in all"):
        anomalies.skip("loss is nan", "skip")


def test_the_policy_is_part_of_the_digest_but_old_folders_keep_their_names() -> None:
    assert commands.settings(*SKIP).digest != commands.settings(*WORDS).digest
    assert commands.settings(*WORDS, "trainer.non_finite=stop").digest == commands.settings(*WORDS).digest


def test_f20_a_jump_of_the_loss_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    disturb(
        monkeypatch, bad_at(10, 133, 136, value=40.0)
    )  # the first before there is a window to compare with
    words = (*commands.TINY, *commands.RECALL, "budget.tokens=18000", "trainer.checkpoint_every=134")
    folder = commands.train(*words, f"runs={tmp_path}")
    found = commands.result(folder)
    assert found["training"]["steps"] == 140
    assert found["training"]["loss_spikes"] == 2
    assert found["training"]["skipped_steps"] == 0
    record("F20", "loss forty times as large at a step", 2, "counted in the result, nothing intervened")


def test_a_spike_is_six_deviations_above_the_mean_of_the_window() -> None:
    losses = np.random.default_rng(0).normal(3, 0.1, WINDOW).tolist()
    mean, deviation = np.mean(losses), np.std(losses)
    for loss, spikes in ((mean + 6.1 * deviation, 1), (mean + 5.9 * deviation, 0), (mean - 9 * deviation, 0)):
        anomalies = LossAnomalies()
        for each in (*losses, loss):
            anomalies.record_loss(float(each))
        assert anomalies.spikes == spikes
        assert len(anomalies.recent) == WINDOW


def run_out_above(monkeypatch: pytest.MonkeyPatch, rows: int, when: Callable[[Trainer], bool]) -> None:
    """No more than so many sequences fit."""
    honest, place = CausalLM.loss, {}
    gradients = Trainer._gradients

    def loss(self: CausalLM, output: Any, view: Any) -> Any:
        if when(place["trainer"]) and view.tokens_BT.shape[0] > rows:
            raise torch.OutOfMemoryError(f"no room for {view.tokens_BT.shape[0]}")
        return honest(self, output, view)

    def step(self: Trainer, view: Any, count: Any, size: int) -> Any:
        place["trainer"] = self
        return gradients(self, view, count, size)

    monkeypatch.setattr(CausalLM, "loss", loss)
    monkeypatch.setattr(Trainer, "_gradients", step)


@pytest.mark.parametrize("step", [0, 4])
def test_f21_out_of_memory_says_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, record: Any
) -> None:
    run_out_above(monkeypatch, 5, lambda trainer: trainer.state.step == step)
    words = (*WORDS, "budget.batch_size=16")
    with pytest.raises(OutOfMemoryError, match=r"with 16 sequences at once: no room for 16; 4 fit") as out:
        commands.train(*words, f"runs={tmp_path}")
    assert out.value.exit_code == 5
    found = commands.result(folder_of(words, tmp_path))
    assert found["status"] == "oom"
    assert "budget.micro_batch_size=4 (or auto)" in found["message"]
    assert "peak" in found["message"]
    record("F21", f"no room for the batch at step {step}", 1, "exit 5, says how many sequences fit")


@pytest.mark.parametrize("backbone", ["decoder", "moe_deepseek"])
def test_f21_auto_goes_on_with_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: str, record: Any
) -> None:
    words = (*WORDS, f"backbone={backbone}", "budget.tokens=1500", "optimizer.learning_rate=1e-3")
    expected = commands.rows(commands.train(*words, f"runs={tmp_path}/whole"))
    run_out_above(monkeypatch, 1, lambda trainer: trainer.state.step >= 5)
    folder = commands.train(*words, "budget.micro_batch_size=auto", f"runs={tmp_path}/auto")
    found = commands.result(folder)
    assert found["training"]["micro_batch_size"] == 1
    losses, others = (
        [row["loss"] for row in rows if row["kind"] == "train"] for rows in (commands.rows(folder), expected)
    )
    assert len(losses) == len(others) > 8
    assert losses == pytest.approx(others, rel=1e-6)
    record("F21", f"no room for the batch of {backbone}, auto", 1, "halved, losses equal to 1e-6")


def test_f21_memory_that_really_runs_out(tmp_path: Path, record: Any) -> None:
    """The system refuses to give the process more: what PyTorch then raises is recognised."""
    words = (*commands.TINY, *commands.RECALL, "budget.batch_size=16384", "budget.tokens=800000")
    words += ("trainer.validation_examples=2", "trainer.test_examples=2", f"runs={tmp_path}")

    def work() -> None:
        status = Path("/proc/self/status").read_text()
        now = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmSize")).split()[1])
        resource.setrlimit(resource.RLIMIT_AS, (now + 2**28, resource.RLIM_INFINITY))
        try:
            commands.train(*words)
        except OutOfMemoryError as error:
            raise SystemExit(error.exit_code) from None

    assert in_a_child(work) == 5
    found = commands.result(commands.settings(*words).folder)
    assert found["status"] == "oom"
    assert "budget.micro_batch_size=" in found["message"]
    record("F21", "the system refuses memory (RLIMIT_AS)", 1, "exit 5, says how many sequences fit")


def test_what_is_no_lack_of_memory_is_not_tried_again() -> None:
    calls = []

    def work(size: int) -> None:
        calls.append(size)
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        MicroBatcher("auto", 8).run(work)
    assert calls == [8]
    assert is_out_of_memory(RuntimeError("std::bad_alloc"))
    assert is_out_of_memory(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    )
    assert not is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))
    assert not is_out_of_memory(KeyError("can't allocate memory"))


def test_nothing_fits() -> None:
    def work(size: int) -> None:
        raise MemoryError

    with pytest.raises(OutOfMemoryError, match="even with one sequence"):
        MicroBatcher("auto", 2).run(work)


@pytest.mark.full
def test_f22_resuming_takes_no_more_memory(tmp_path: Path, record: Any) -> None:
    """Each session is a process of its own: a forked one begins with whatever its parent held.

    One sequence a step, so that weights, gradients and moments are most of what grows. A checkpoint that was
    held twice, while it is loaded or after, would take three times the weights more.
    """
    words = (*commands.RECALL, "device=cpu", "device.threads=1", "budget=smoke", "budget.batch_size=1")
    words += ("scale.targets.total=10000000", "scale.axis=total", "budget.tokens=320")
    words += ("trainer.checkpoint_every=6", "trainer.validation_examples=2", "trainer.test_examples=2")
    words += (f"runs={tmp_path}",)
    folder = folder_of(words[:-1], tmp_path)
    assert commands.run("train", *words).returncode == 0
    first = commands.result(folder)
    (folder / "result.json").unlink()
    shutil.rmtree(commands.newest_checkpoint(folder))
    assert commands.run("train", *words).returncode == 0
    found = commands.result(folder)
    assert (first["resume"]["sittings"], found["resume"]["sittings"]) == (1, 2)
    fresh, again = (result["training"]["peak_memory_bytes"] for result in (first, found))
    weights = 4 * found["parameters"]["total"]
    assert weights > 30_000_000
    assert again - fresh < weights, f"{fresh:,} bytes, then {again:,}"
    record("F22", "resumed with 10M parameters", 1, f"peak {again / fresh:.3f} of the fresh run's")
