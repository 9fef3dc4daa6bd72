"""Several processes that train one run fail, are refused and survive together. They are real, over gloo."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.config.schema import ParallelConfig
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.machine import ProcessRank, process_rank
from archbench.experiments.runtime.run_lock import RunLock
from archbench.experiments.train import train as train_command
from tests.experiments import commands
from tests.experiments.training.parallel.together import (
    STEPS,
    WORDS,
    commands_together,
    ended,
    start_together,
)

DECODER = (*WORDS, *commands.RECALL, "backbone=decoder")

FAULTY = """
import os
import torch
from archbench.architectures.backbones.decoder import Decoder

class Faulty(Decoder):
    calls = 0
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        self.calls += self.training
        if os.environ["RANK"] == "1":
            {fault}
        return output
"""


FAULTS = {
    "raises": ("if self.calls == 3: raise KeyError('the plug is out')", 1, "failed", 2, "the plug is out"),
    "not finite": (
        "if self.calls == 3: output.logits_BTV = output.logits_BTV * torch.nan",
        4,
        "diverged",
        2,
        "loss is nan at step 3",
    ),
    "not finite in evaluation": (
        "if not self.training: output.logits_BTV = output.logits_BTV * torch.nan",
        4,
        "diverged",
        STEPS,
        "validation: the model's outputs are not finite",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(("fault", "code", "status", "steps", "said"), FAULTS.values(), ids=FAULTS)
def test_one_process_that_fails_ends_all(
    tmp_path: Path, fault: str, code: int, status: str, steps: int, said: str
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY.replace("{fault}", fault))
    words = (*DECODER, "backbone._target_=faulty.Faulty", f"runs={tmp_path / 'runs'}")
    found = commands_together(2, tmp_path, *words, prepare=lambda rank: sys.path.insert(0, str(tmp_path)))
    assert [each[0] for each in found] == [code, code], found
    assert sum(err.count("error: ") for _, _, err in found) == 1, found
    assert said in "".join(err for _, _, err in found)
    (path,) = (tmp_path / "runs").glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    assert (result["status"], result["training"]["steps"]) == (status, steps)
    assert said in result["message"]


SURVIVABLE = """
import os
import torch
from torch.distributed.checkpoint.filesystem import FileSystem
from archbench.architectures.backbones.decoder import Decoder

class Survivable(Decoder):
    calls = 0
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        self.calls += self.training
        if os.environ["RANK"] == "1" and self.calls == 3:
            output.logits_BTV = output.logits_BTV * torch.nan
        return output

create_stream, calls = FileSystem.create_stream, []
def fail_twice(self, path, mode):
    calls.append(mode)
    if os.environ["RANK"] == "1" and len(calls) in (2, 3):
        raise OSError("the disk is full")
    return create_stream(self, path, mode)
FileSystem.create_stream = fail_twice
"""


@pytest.mark.full
def test_a_step_left_out_and_a_save_that_fails_are_survived_together(tmp_path: Path) -> None:
    """The loss is no number in the second process, and it cannot write the moments of the checkpoint of
    step 5, nor the weights when it tries again."""
    (tmp_path / "survivable.py").write_text(SURVIVABLE)
    long = ("budget.tokens=2560", "trainer.checkpoint_every=5", "trainer.non_finite=skip", "parallel=fsdp")
    words = (*DECODER, *long, "backbone._target_=survivable.Survivable", f"runs={tmp_path / 'runs'}")
    found = commands_together(2, tmp_path, *words, prepare=lambda rank: sys.path.insert(0, str(tmp_path)))
    assert [code for code, _, _ in found] == [0, 0], found
    said = "".join(out for _, out, _ in found)
    assert said.count("loss is nan at step 3: left out") == said.count("training goes on (1 of 3") == 1, said
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/*/*/result.json"))
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["training"]["skipped_steps"]) == ("complete", 1)
    bad = json.loads((folder / "failures" / "step-00000003.json").read_text())["gradients_not_finite"]
    assert any("embedding" in name for name in bad)
    assert [path.name[-2:] for path in sorted((folder / "checkpoints").iterdir())] == ["10", "15", "20"]


@pytest.mark.full
def test_a_run_that_is_being_written_is_refused_by_all_once(tmp_path: Path) -> None:
    words = (*DECODER, f"runs={tmp_path / 'runs'}")
    with RunLock(commands.settings(*words).folder):
        found = ended(start_together(2, *words), 300)
    assert [code for code, _, _ in found] == [7, 7], found
    assert sum(err.count("this run is being written by process") for _, _, err in found) == 1, found


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("budget.batch_size=3",), "budget.batch_size=3 cannot be divided among 2 processes"),
        (("backbone=mamba", "parallel=tensor"), "SelectiveSSM cannot be cut"),
        (("backbone.attention.qk_norm=head", "parallel=tensor"), "tensor: weights of attention.qk_norm"),
        (
            ("backbone.attention.value_residual=true", "parallel=tensor"),
            "weights of attention.value_residual",
        ),
        (("backbone.attention.differential=true", "parallel=tensor"), "weights of attention.differential"),
        (("parallel=fsdp", "parallel.tensor=3"), "2 processes cannot be divided"),
        (("parallel=tensor", "parallel.replicate=2"), "cannot be divided by both; start a multiple of 4"),
        (("parallel.expert=2",), "no experts to share out"),
        (("budget.micro_batch_size=auto",), "must keep step"),
    ],
    ids=["batch", "layer", "norms", "values", "pairs", "processes", "both", "experts", "auto"],
)
def test_what_cannot_be_divided_is_refused_once(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    runs = f"runs={tmp_path / 'runs'}"
    found = commands_together(2, tmp_path, *WORDS, *commands.RECALL, *words, runs)
    assert [code for code, _, _ in found] == [2, 2], found
    assert sum(err.count(said) for _, _, err in found) == 1, found


def test_more_than_one_part_needs_more_than_one_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2"):
        commands.train(*DECODER, "parallel=tensor", f"runs={tmp_path}")


def test_a_sweep_is_not_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    cfg = commands.compose(*WORDS, *commands.RECALL, "hydra.mode=MULTIRUN")
    with pytest.raises(ConfigError, match="torchrun for each run"):
        train_command(cfg)


def test_srun_tells_a_process_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    words = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    assert process_rank() == ProcessRank()  # tasks that are runs of their own
    monkeypatch.setenv("MASTER_ADDR", "node1")
    assert process_rank() == ProcessRank(rank=5, local_rank=1, size=8)


def test_a_run_is_the_same_run_however_many_train_it() -> None:
    plain = commands.settings("backbone=decoder")
    assert commands.settings("backbone=decoder", "parallel=fsdp").key == plain.key


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"strategy": "fsdb"}, "did you mean 'fsdp'"),
        ({"tensor": 0}, "tensor=0"),
        ({"activation_checkpointing": "blok"}, "did you mean 'block'"),
        ({"tensor": 2, "expert": 2}, "cannot be combined"),
        ({"strategy": "ddp", "tensor": 2}, "strategy=fsdp"),
        ({"strategy": "ddp", "replicate": 2}, "replicate=2 needs strategy=fsdp, not ddp"),
        ({"replicate": 2}, "replicate=2 needs strategy=fsdp, not none"),
    ],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ParallelConfig(**values)
