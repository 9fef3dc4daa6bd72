"""The checkpoint of a run that commands read: the last one or the one named, never another in its place."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from archbench.experiments.check import check_study
from archbench.experiments.evaluate import evaluate
from archbench.experiments.evaluation.sample_quality.__main__ import sample_quality
from archbench.experiments.export import export
from archbench.experiments.generate import generate
from archbench.experiments.run.load_model import load_model
from archbench.experiments.run.model_files import model_checkpoint
from archbench.experiments.runtime.errors import CheckpointError, ConfigError
from tests.experiments import commands
from tests.faults.test_fuzz_damage import damage, refusal

WORDS = (*commands.TINY, *commands.SHORT_TEXT, "trainer.checkpoint_every=10")
LAST, OLDER = "step-00000015", "step-00000010"
QUALITY = ("device=cpu", "num_samples=2", "length=8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 10 and 15, its last."""
    return commands.train(*WORDS, f"runs={tmp_path_factory.mktemp('trained')}")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / trained.relative_to(trained.parents[2])))


def flip_a_bit(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def hold_another_step(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.with_name(OLDER), checkpoint)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped bit": flip_a_bit,
    "no manifest": lambda path: (path / "MANIFEST.json").unlink(),
    "no folder": shutil.rmtree,
    "copy of another step": hold_another_step,
    "set aside": lambda path: path.rename(path.with_name(f"broken-{path.name}-abcd")),
}

READERS: dict[str, Callable[[Path, Path], object]] = {
    "evaluate": lambda path, to: evaluate(
        commands.compose(f"run={path}", "device=cpu", "examples=4", f"output={to}.json", root="evaluate")
    ),
    "generate": lambda path, to: generate(
        commands.compose(f"run={path}", "device=cpu", "max_tokens=2", root="generate")
    ),
    "export": lambda path, to: export(commands.compose(f"run={path}", f"to={to}", root="export")),
    "sample_quality": lambda path, to: sample_quality(
        commands.compose(f"run={path}", f"judge={path}", *QUALITY, root="sample_quality")
    ),
    "init_from": lambda path, to: commands.settings(f"init_from={path}", *WORDS[2:]),
    "continue_from": lambda path, to: commands.settings(f"continue_from={path}", *WORDS),
}


@pytest.mark.parametrize("reader", READERS)
def test_an_older_checkpoint_is_read_only_where_it_is_named(reader: str, run: Path, tmp_path: Path) -> None:
    last, older = run / "checkpoints" / LAST, run / "checkpoints" / OLDER
    READERS[reader](run, tmp_path / "first")
    flip_a_bit(last)
    for path in (run, last):
        with pytest.raises(CheckpointError, match=rf"{last}: model.safetensors has changed .*{older}"):
            READERS[reader](path, tmp_path / "second")
    assert not (tmp_path / "second").exists()
    READERS[reader](older, tmp_path / "third")


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "killed"])
def test_whatever_became_of_the_last_checkpoint(how: str, ended: bool, run: Path) -> None:
    last, older = run / "checkpoints" / LAST, run / "checkpoints" / OLDER
    DAMAGES[how](last)
    if not ended:
        (run / "result.json").unlink()
    if how == "no folder" and not ended:  # nothing tells how far it came
        assert model_checkpoint(run) == older
        return
    with pytest.raises(CheckpointError, match=rf"{last}: .*name an older one: {older}"):
        model_checkpoint(run)
    assert load_model(older, torch.device("cpu")).step == 10
    assert check_study(run.parents[1]).exit_code == (6 if ended or how != "set aside" else 0)


def test_random_damage_of_the_last_checkpoint_is_never_passed_over(run: Path) -> None:
    last = run / "checkpoints" / LAST
    kept = Path(shutil.copytree(last, run.parent / "kept"))
    for seed in range(60):
        rng = random.Random(seed)
        done = damage(rng.choice(sorted(last.iterdir())), rng)
        error = refusal(model_checkpoint, run)
        if error is None:  # nothing was done, or spaces of a manifest changed
            assert done is None or "MANIFEST" in done, f"seed {seed}: {done}"
            assert model_checkpoint(run) == last, f"seed {seed}: {done}"
        else:
            assert last.name in str(error), f"seed {seed}: {done}"
        shutil.rmtree(last)
        shutil.copytree(kept, last)
    assert model_checkpoint(run) == last


def test_the_step_is_part_of_what_is_printed_and_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, step in ((run, 15), (run / "checkpoints" / OLDER, 10)):
        capsys.readouterr()
        READERS["evaluate"](path, tmp_path / "found")
        assert f"{run} (decoder-text-nano s0, step {step})" in capsys.readouterr().out
        assert json.loads((tmp_path / "found.json").read_text())["step"] == step
        READERS["export"](path, tmp_path / f"exported-{step}")
        assert f"step {step}" in capsys.readouterr().out


def test_a_checkpoint_that_is_not_there_is_refused_with_the_nearest(run: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"step-00000005: it is missing.*{LAST}, .*{OLDER}"):
        load_model(run / "checkpoints" / "step-00000005", torch.device("cpu"))
    with pytest.raises(ConfigError, match="did you mean 'step-000000"):
        commands.settings(*WORDS, f"continue_from={run}/checkpoints/step-000001")


def test_a_resumed_run_says_on_stderr_and_in_its_result_that_it_fell_back(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = commands.result(run)["metrics"]
    (run / "result.json").unlink()
    flip_a_bit(run / "checkpoints" / LAST)
    capsys.readouterr()
    commands.train(*WORDS, f"runs={run.parents[2]}")
    warned = [line for line in capsys.readouterr().err.splitlines() if f"fell back to {OLDER}" in line]
    assert len(warned) == 1
    assert warned[0] in (run / "train.log").read_text() or "fell back" in (run / "train.log").read_text()
    found = commands.result(run)
    assert found["resume"]["fallbacks"] == ["step 15: model.safetensors has changed since it was written"]
    assert found["resume"]["exact"]
    assert found["metrics"] == expected
    assert model_checkpoint(run).name == LAST


def test_a_run_that_was_killed_after_it_fell_back_says_so_too(run: Path) -> None:
    (run / "result.json").unlink()
    last = run / "checkpoints" / LAST
    aside = last.rename(last.with_name("broken-step-00000015-abcd"))
    (aside / "REASON.txt").write_text("state.json is missing\n")
    commands.train(*WORDS, f"runs={run.parents[2]}")
    assert commands.result(run)["resume"]["fallbacks"] == ["step 15: state.json is missing"]
