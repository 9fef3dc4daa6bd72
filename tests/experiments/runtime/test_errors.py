"""Every mistake ends with one line that names key, value and remedy, and with its exit code."""

import copy
import os
import resource
import sys
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from archbench.experiments.config.hydra_app import start
from archbench.experiments.runtime.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    OutOfMemoryError,
    Preempted,
    RunError,
    nearest,
)
from archbench.experiments.train import train
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands

MISTAKES = [
    # unknown names
    ("backbone=mambo", "backbone=mambo", "did you mean 'mamba'?"),
    ("task=recal", "task=recal", "did you mean 'recall'?"),
    ("optimizer=zzz", "optimizer=zzz", "options: adamw, gpt3, muon, nadam, sgd"),
    ("study=compar", "study=compar", "did you mean 'compare'?"),
    ("sede=1", "sede", "did you mean 'seed'?"),
    ("+sede=1", "sede", "did you mean 'seed'?"),
    (
        "backbone.attention.n_heads=4",
        "backbone.attention.n_heads",
        "did you mean 'backbone.attention.num_heads'?",
    ),
    (
        "+backbone.attention.n_heads=4",
        "backbone.attention.n_heads",
        "did you mean 'num_heads'?",
    ),
    ("backbone=mamba backbone.d_stat=4", "backbone.d_stat", "did you mean 'd_state'?"),
    ("task.tokenizer.knd=bytes", "task.tokenizer.knd", "did you mean 'kind'?"),
    ("study.nam=x", "study.nam", "did you mean 'name'?"),
    ("d_model=64", "d_model", "did you mean 'backbone.d_model'?"),
    ("n_layer=4", "n_layer", "did you mean 'scale.depth'?"),
    ("max_iters=10", "max_iters", "did you mean 'budget.tokens'? (training tokens in all: steps x"),
    ("clip_norm=1", "clip_norm", "did you mean 'optimizer.clip_norm'?"),
    ("d_state=4 backbone=mamba", "d_state", "did you mean 'backbone.d_state'?"),
    ("q_rank=4", "q_rank", "did you mean 'backbone.attention.latent.q_rank'?"),
    # values that cannot be read
    ("trainer.extra_evaluations=sequence_length=3", "quote it twice: 'trainer.extra_evaluations=\"sequence_"),
    ("seed=1e3", "seed=1000.0 must be a whole number", "write seed=1000"),
    ("scale.targets.flops=1M", "scale.targets.flops=1M", "write scale.targets.flops=1000000"),
    (f"task.paths={'[' * 3000 + ']' * 3000}", "task.paths: nested 3000 brackets deep"),
    (f"study.tokens={'{a:' * 300}1{'}' * 300}", "study.tokens: nested 300 brackets deep"),
    (f"seed={'9' * 5000}", "seed: a number of more than 400 digits"),
    ("trainer.extra_evaluations=['sequence_length=[[[']", "'sequence_length=[[['", "cannot be read"),
    (
        f"trainer.extra_evaluations=['sequence_length={'[' * 3000}']",
        "trainer.extra_evaluations: ",
        "cannot be read",
    ),
    ("runs=''", "runs=''", "must name a folder"),
    (f"study.name={'x' * 300}", "study.name", "at most 100 characters"),
    ("init_from=/nope", "init_from=/nope", "no such folder"),
    ("continue_from=/nope", "continue_from=/nope", "no such folder"),
    # values of the wrong type, or none
    ("optimizer.learning_rate=abc", "optimizer.learning_rate=abc must be a number"),
    ("budget.batch_size=1.5", "budget.batch_size=1.5 must be a whole number"),
    ("seed=abc", "seed=abc must be a whole number"),
    ("seed=null", "seed=null", "must have a value"),
    ("budget.tokens=???", "budget.tokens has no value", "set budget.tokens=..."),
    ("runs=???", "runs has no value", "set runs=..."),
    ("~device", "~device: cannot be deleted", "device=NAME: a100, auto, "),
    ("~runs", "~runs: cannot be deleted", "runs=VALUE"),
    ("scale.targets.total=5000", "scale.axis=flops is in the way", "add scale.axis=total"),
    ("names=null", "names=None", "must be a mapping"),
    ("tracking=null", "tracking=null", "did you mean 'off'?"),
    ("foo", "'foo'", "KEY=VALUE"),
    # values that cannot be
    ("optimizer.learning_rate=-1", "learning_rate=-1.0", "must be positive"),
    ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan", "finite"),
    ("optimizer.betas=[0.9]", "betas=[0.9]", "two numbers in [0, 1)"),
    ("optimizer.schedule=cosin", "schedule='cosin'", "did you mean 'cosine'?"),
    ("optimizer.warmup_fraction=2", "warmup_fraction=2.0", "[0, 1]"),
    ("budget.tokens=0", "tokens=0", "must be positive"),
    ("budget.micro_batch_size=0", "micro_batch_size=0", "must be positive, or null"),
    ("trainer.log_every=0", "log_every=0", "at least 1"),
    ("trainer.test_examples=1", "test_examples=1", "give at least 2"),
    ("device.precision=fp16", "precision='fp16'", "did you mean 'bf16'?"),
    ("device.name=gpu", "name='gpu'", "did you mean 'cuda'?"),
    ("device.name=cuda:x", "name='cuda:x'", "did you mean 'cuda'?"),
    ("seed=0,1,2", "seed=0,1,2", "add -m"),
    ("seed=range(0,5)", "seed=range(0,5)", "add -m"),
    ("seed=0-4", "seed=0-4 must be", "write -m seed=0,1,2,3,4"),
    ("seed=0..40", "seed=0..40 must be", "write -m 'seed=range(0,41)'"),
    ("seed=[0,1]", "[0, 1]", "write -m seed=0,1"),
    # what would do nothing, or something that nobody asked for
    ("--multirun backbone=glob(xyz*)", "'xyz*' matches no YAML file of backbone"),
    ("--multirun backbone=glob([mamba,xyz])", "'xyz' matches no YAML file of backbone"),
    ("--multirun backbone=glob(*,exclude=mambaa)", "'mambaa' matches", "did you mean 'mamba'?"),
    ("--multirun seed=range(5,5)", "the sweep has no runs"),
    ("study=", "study= is empty"),
    ("device.name=cuda:99", "name='cuda:99'", "CUDA devices; use device=cpu"),
    ("device.threads=0", "threads=0", "must be in 1 to 256, or be null"),
    ("tracking.mode=on", "mode='on'", "off, online, offline"),
    ("task=recall task.num_pairs=9", "num_pairs=9", "needs sequence_length >= 36"),
    ("task=recall task.num_symbols=4", "num_symbols=4", "use num_symbols >= 10"),
    ("task.source=hub", "source=hub", "needs dataset"),
    # sizes
    (
        "backbone.attention.num_heads=3 backbone.attention.num_kv_heads=2",
        "num_heads=3",
        "multiple of num_kv_heads=2",
    ),
    ("backbone.d_model=30", "d_model=30", "multiple of 8"),
    (
        "scale.axis=parameters",
        "axis='parameters'",
        "options: active_non_embedding, flops, non_embedding, total",
    ),
    ("scale.targets.flops=10", "scale.targets.flops=10", "choose another target"),
    ("scale.targets=null", "backbone.d_model and scale.targets", "give a width"),
    ("scale.targets.flops=20000 backbone.d_model=64 backbone.d_ff=64", "flops=20000", "scale=given"),
    ("scale.targets.flops=0", "scale.targets.flops=0", "positive whole number"),
    ("scale.targets.flops=1.5", "scale.targets.flops=1.5", "positive whole number"),
    ("scale.targets=5", "scale.targets=5", "a size for each axis"),
    (
        "scale.axis=total scale.targets.total=null",
        "scale.axis=total",
        "only for active_non_embedding, flops, non_embedding",
        "parameters in all",
    ),
    ("+scale.target=20000", "scale.target=20000", "write scale.targets.flops=20000"),
    # pairs that cannot meet
    (
        "backbone=mamba objective=masked_lm",
        "objective=masked_lm needs a bidirectional backbone",
        "Backbones for this objective: encoder, hybrid_bidirectional, mamba2_bidirectional, "
        "mamba_bidirectional, masked_diffusion, masked_diffusion_moe, s4_bidirectional, s4_listops.",
    ),
    ("backbone=encoder objective=causal_lm", "Backbones for this objective: decoder, deltanet, "),
    ("backbone=decoder objective=span_corruption", "Backbones for this objective: encoder_decoder, switch."),
    ("objective=classification task=recall", "objective=classification cannot train on task=recall"),
    # names that would lead out of the runs folder
    ("study.name=../escaped", "study.name='../escaped'", "letters, digits"),
    ("study.name=..", "study.name='..'", "letters, digits"),
    ("study.name=a/b", "study.name='a/b'", "letters, digits"),
    ("study.name=null", "study.name=null must be text"),
    ("names.task=../../escaped", "names.task='../../escaped'", "letters, digits"),
    ("names.scale=a/b", "names.scale='a/b'", "letters, digits"),
    (f"names.backbone={'x' * 60}", "names", "characters, W&B takes 64", "shorten the names"),
    # classes that are none
    ("backbone._target_=os.system", "backbone._target_=os.system", "not a Backbone"),
    ("task._target_=builtins.exec", "task._target_=builtins.exec", "not a Task"),
    (
        "objective._target_=archbench.architectures.backbones.decoder.Decoder",
        "objective._target_=",
        "not a Objective",
    ),
    (
        "backbone._target_=archbench.architectures.backbones.decoder.Decodr",
        "no class 'Decodr' in 'archbench.architectures.backbones.decoder'",
    ),
    ("backbone._target_=archbench.architectures.nothing.Decoder", "no module", "is it on PYTHONPATH?"),
    ("backbone._target_=.decoder.Decoder", "not a dotted path", "write package.module.Class"),
    ("backbone._target_=archbench.architectures.backbone.Backbone", "has no Config"),
]


@pytest.fixture
def finish(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs the entry point in this process to its exit; gives the code and what stands on stderr."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry point sets it; this takes it back

    def run(*words: str) -> tuple[int, str]:
        flags = [word for word in words if word.startswith("--")]
        overrides = [word for word in words if not word.startswith("--")]
        monkeypatch.setattr(sys, "argv", ["train", *flags, f"runs={tmp_path}/runs", *overrides])
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as stopped:
            start(train)
        assert isinstance(stopped.value.code, int)
        lines = capsys.readouterr().err.splitlines(keepends=True)
        # The first test that needs a corpus prepares it.
        return stopped.value.code, "".join(line for line in lines if not line.startswith("writing tokens"))

    return run


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[0])
def test_a_mistake_is_said_in_one_line(finish, tmp_path: Path, mistake: tuple[str, ...]) -> None:
    code, err = finish(*mistake[0].split())
    assert code == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for part in mistake[1:]:
        assert part in err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*/s0")), "a run was begun"


@pytest.mark.parametrize("words", [[], ["-m"]])
def test_without_words_no_default_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", *words])
    with pytest.raises(SystemExit, match="2"):
        start(train)
    assert capsys.readouterr().err.startswith("error: no run is chosen")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_an_absent_device_is_said(finish) -> None:
    code, err = finish("device=cuda")
    assert code == 2
    assert "name='cuda': this machine has 0 CUDA devices; use device=cpu" in err


@pytest.mark.parametrize("mode", [(), ("--multirun",)])
@pytest.mark.parametrize("name", ["..", "../escaped", "a/b"])
def test_no_study_name_leads_out_of_its_folder(finish, tmp_path: Path, name: str, mode: tuple[str]) -> None:
    code, err = finish(*mode, f"study.name={name}")
    assert code == 2
    assert f"study.name={name!r}" in err
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")} <= {"runs"}
    assert not [path for path in tmp_path.rglob("*") if path.name != "multirun.yaml" and path.is_file()]


@pytest.mark.parametrize("target", ["canary.sing", "canary.Sing", "os.system"])
def test_a_target_that_is_no_part_is_not_called(
    finish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    song = tmp_path / "song"
    (tmp_path / "canary.py").write_text(
        "from pathlib import Path\n"
        f"def sing(*args, **kwargs): Path({str(song)!r}).touch()\n"
        "class Sing:\n"
        "    def __init__(self, *args, **kwargs): sing()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "system", lambda command: song.touch())
    for group in ("backbone", "objective", "task"):
        code, err = finish(f"{group}._target_={target}")
        assert code == 2
        assert f"{group}._target_={target} is not a" in err
    assert not song.exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("backbone=mambo",), "did you mean 'mamba'?"),
        (("backbone=mamba", "objective=masked_lm"), "masked_diffusion"),
        (("task=recall", "task.num_pairs=9"), "num_pairs=9"),
        (("optimizer.learning_rat=1",), "did you mean 'learning_rate'?"),
        (("task=recall", "scale.targets.flops=10"), "scale.targets.flops=10"),  # no text to prepare first
    ],
)
def test_a_process_with_a_mistake_ends_at_once(tmp_path: Path, words: tuple[str], part: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = commands.run("train", *words, f"runs={tmp_path}/runs")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Time of the processor: what it takes on a machine that does nothing else.
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert part in ended.stderr
    assert ended.stdout == ""
    assert seconds < 10


def test_debug_adds_the_traceback(tmp_path: Path) -> None:
    ended = commands.run("train", "scale.targets.flops=10", f"runs={tmp_path}/runs", DEBUG="1")
    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert "scale.targets.flops=10" in ended.stderr


def test_data_that_cannot_be_is_exit_code_3(finish) -> None:
    code, err = finish("task.sequence_length=1000000")
    assert code == 3
    assert "sequence_length=1000000: use more text or a shorter window" in err
    code, err = finish("task.cache_dir=/dev/null/cache")
    assert code == 3
    assert "/dev/null/cache" in err


def test_a_folder_that_cannot_be_written_is_exit_code_6(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = commands.run("train", *commands.TINY, "task=recall", f"runs={tmp_path}/file")
    assert ended.returncode == 6
    assert str(tmp_path / "file") in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("raised", "kind", "status", "code", "said"),
    [
        (torch.OutOfMemoryError("no room"), OutOfMemoryError, "oom", 5, "halve budget.micro_batch_size"),
        (MemoryError("no room"), OutOfMemoryError, "oom", 5, "halve budget.micro_batch_size"),
        (RuntimeError("can't allocate memory: 8 EB"), OutOfMemoryError, "oom", 5, "micro_batch_size"),
        (KeyError("surprise"), RunError, "failed", 1, "Traceback"),
    ],
)
def test_what_happens_in_training_becomes_a_row(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    raised: Exception,
    kind: type[RunError],
    status: str,
    code: int,
    said: str,
) -> None:
    words = (*commands.TINY, "task=recall", f"runs={tmp_path}")

    def fail(self: Trainer) -> float:
        raise raised

    monkeypatch.setattr(Trainer, "train_step", fail)
    with pytest.raises(kind) as caught:
        commands.train(*words)
    assert caught.value.exit_code == code
    found = commands.result(commands.settings(*words).folder)
    assert found["status"] == status
    assert said in found["message"]
    assert found["metrics"] == []
    assert found["parameters"]["body"] > 0


def test_a_preempted_run_is_no_exception_that_a_sweep_swallows() -> None:
    assert Preempted().code == 75
    assert not isinstance(Preempted(), Exception)


def test_nearest_names_or_lists() -> None:
    assert nearest("mambo", ["mamba", "s4"]) == "; did you mean 'mamba'?"
    assert nearest("zzz", ["s4", "mamba"]) == "; options: mamba, s4"
    assert nearest("zzz", []) == ""


def test_statuses_and_codes_are_distinct() -> None:
    classes = [*RunError.__subclasses__(), RunError]
    assert len({cls.exit_code for cls in classes}) == len(classes)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("a"),
        DataError("b"),
        DivergedError("c"),
        OutOfMemoryError("d"),
        CheckpointError("e"),
        Preempted(),
    ],
)
def test_an_error_travels_between_processes(error: BaseException) -> None:
    """A sweep sends it from the worker to the one who waits, taken apart and built again as by ``copy``."""
    arrived = copy.copy(error)
    assert type(arrived) is type(error)
    assert arrived.args == error.args
