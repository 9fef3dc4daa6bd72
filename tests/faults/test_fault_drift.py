"""F10, F16, F17 and F18: what may change between the sittings of a run, and what may not."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.experiments.check import check_study
from archbench.experiments.config.digest import result_settings
from archbench.experiments.run.resume_compatibility import check_config, flat
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, DataError, Preempted
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands

WORDS = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=10")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.train(*WORDS, f"runs={tmp_path_factory.mktemp('finished')}")


@pytest.fixture
def interrupted(finished: Path, tmp_path: Path) -> Path:
    """The folder of the run as a kill after step 20 would have left it, in a runs folder of its own."""
    folder = commands.settings(*WORDS, f"runs={tmp_path}").folder
    shutil.copytree(finished, folder)
    (folder / "result.json").unlink()
    return folder


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def test_f17_every_setting_that_decides_is_compared(interrupted: Path, tmp_path: Path, record: Any) -> None:
    settings = commands.settings(*WORDS, f"runs={tmp_path}")
    stored = OmegaConf.load(interrupted / "config.yaml")
    check_config(settings, interrupted)
    must, may = 0, 0
    leaves = flat(OmegaConf.to_container(stored))
    for key, value in leaves.items():
        changed = OmegaConf.create(OmegaConf.to_container(stored))
        OmegaConf.update(changed, key, "skip" if key == "trainer.non_finite" else f"{value} changed")
        OmegaConf.save(changed, interrupted / "config.yaml")
        names_the_run = key in ("seed", "names.backbone", "names.task", "names.scale")
        if names_the_run or key in flat(result_settings(OmegaConf.to_container(changed))):
            with pytest.raises(ConfigError, match="another configuration") as refused:
                check_config(settings, interrupted)
            assert f"{key}: " in str(refused.value)
            assert refused.value.exit_code == 2
            must += 1
        else:
            check_config(settings, interrupted)
            may += 1
    assert must > 40
    assert 5 < may < 60
    record("F17", "one stored setting changed that decides the result", must, "exit 2 with the difference")
    record("F17", "one stored setting changed that does not", may, "continued")


def test_f17_a_changed_setting_begins_another_run(record: Any) -> None:
    """The usual way: the folder's name has the digest of what decides."""
    settings = commands.settings(*WORDS)
    resolved = json.loads(json.dumps(settings.resolved))
    digests = {settings.digest}
    for place in range(9_999):
        resolved["optimizer"]["learning_rate"] = 1e-3 * (1 + place / 1e6)
        digests.add(dataclasses.replace(settings, resolved=resolved).digest)
    assert len(digests) == 10_000
    record("F16", "configurations that differ in one digit", 10_000, "10,000 different folders")


def test_a_finished_run_of_another_configuration_is_not_taken_for_ours(
    finished: Path, tmp_path: Path
) -> None:
    folder = commands.settings(*WORDS, f"runs={tmp_path}").folder
    shutil.copytree(finished, folder)
    text = (folder / "config.yaml").read_text()
    assert "d_model: " in text
    (folder / "config.yaml").write_text(text.replace("clip_norm: 1.0", "clip_norm: 2.0"))
    with pytest.raises(ConfigError, match=r"optimizer.clip_norm: 2.0 there, 1.0 now.* continue_from="):
        commands.train(*WORDS, f"runs={tmp_path}")
    (folder / "config.yaml").write_text("][")
    with pytest.raises(ConfigError, match="cannot be read"):
        commands.train(*WORDS, f"runs={tmp_path}")


def test_f18_changed_data_is_refused(interrupted: Path, tmp_path: Path, record: Any) -> None:
    before = commands.rows(interrupted)
    edit(interrupted / "provenance.json", lambda tree: tree["data"].update(fingerprint="0123456789abcdef"))
    with pytest.raises(DataError, match=r"data has changed .* 0123456789abcdef then") as refused:
        commands.train(*WORDS, f"runs={tmp_path}")
    assert refused.value.exit_code == 3
    assert commands.rows(interrupted) == before
    record("F18", "other data under the same settings", 1, "exit 3 with both fingerprints")


CHANGES = {
    "device.instruction_set": lambda tree: tree["device"].update(instruction_set="abacus"),
    "device.compiler": lambda tree: tree["device"].update(compiler="GCC 0.9"),
    "device.pytorch_instruction_set": lambda tree: tree["device"].update(pytorch_instruction_set="AVX9"),
    "device.library_settings": lambda tree: tree["device"].update(library_settings="MKL_CBWR=SSE2"),
    "code": lambda tree: tree["git"].update(code="0" * 16),
    "versions.torch": lambda tree: tree["versions"].update(torch="2.10.0"),
    "device.threads": lambda tree: tree["device"].update(threads=64),
    "device.processor": lambda tree: tree["device"].update(processor="abacus"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_f10_f18_other_code_libraries_or_machine_are_said_and_kept(
    interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, record: Any
) -> None:
    edit(interrupted / "provenance.json", CHANGES[change])
    capsys.readouterr()
    commands.train(*WORDS, f"runs={tmp_path}")
    said = capsys.readouterr().out
    assert f"warning: changed since the run was last here: {change} " in said
    found = commands.result(interrupted)
    assert found["status"] == "complete"
    assert (found["resume"]["exact"], found["resume"]["sittings"]) == (False, 2)
    assert list(found["resume"]["changed"]) == [change]
    assert any("not exact" in line for line in Comparison(load_study(tmp_path, "single")).warnings)
    (interrupted / "result.json").unlink()
    commands.train(*WORDS, f"runs={tmp_path}")  # nothing changed since, but it did before
    assert commands.result(interrupted)["resume"] | {"sittings": 0} == found["resume"] | {"sittings": 0}
    record("F10" if "." in change else "F18", f"{change} changed before resuming", 1, "warned, exact: false")


@pytest.mark.parametrize("kept", ["config.yaml", "provenance.json", "checkpoints"])
def test_f50_a_stopped_run_is_not_resumed_as_another_seed(
    interrupted: Path, tmp_path: Path, kept: str, record: Any
) -> None:
    """The folder was copied, and what its files say was edited, but for one of them."""
    other = interrupted.with_name("s5")
    shutil.copytree(interrupted, other)
    config, provenance = other / "config.yaml", other / "provenance.json"
    if kept != "config.yaml":
        config.write_text(config.read_text().replace("\nseed: 0\n", "\nseed: 5\n"))
    if kept != "provenance.json":
        edit(provenance, lambda tree: tree.update(key=f"{other.parent.name}-s5"))
    expected = "seed: 0 there, 5 now" if kept == "config.yaml" else "the run .*-s0 saved it"
    with pytest.raises((ConfigError, CheckpointError), match=expected):
        commands.train(*WORDS, "seed=5", f"runs={tmp_path}")
    assert not (other / "result.json").exists()
    assert check_study(tmp_path / "single").exit_code == 6
    record("F50", f"stopped run copied to another seed, {kept} as it was", 1, "refused by name")


def test_f50_a_complete_run_of_another_seed_is_not_taken_for_done(finished: Path, tmp_path: Path) -> None:
    folder = commands.settings(*WORDS, "seed=1", f"runs={tmp_path}").folder
    shutil.copytree(finished, folder)
    with pytest.raises(ConfigError, match="seed: 0 there, 1 now"):
        commands.train(*WORDS, "seed=1", f"runs={tmp_path}")
    assert not any(load_study(tmp_path, "single")["status"] == "complete")


def test_an_undisturbed_continuation_is_exact(interrupted: Path, tmp_path: Path) -> None:
    commands.train(*WORDS, f"runs={tmp_path}")
    assert commands.result(interrupted)["resume"] == {"sittings": 2, "exact": True, "changed": {}}
    assert not any("not exact" in line for line in Comparison(load_study(tmp_path, "single")).warnings)


def test_f17_a_fork_continues_in_a_run_of_its_own(finished: Path, tmp_path: Path, record: Any) -> None:
    parent = tmp_path / "parent"
    shutil.copytree(finished, parent)
    shutil.rmtree(commands.newest_checkpoint(parent))
    start = load_file(commands.newest_checkpoint(parent) / "model.safetensors")
    files = {path: path.stat().st_mtime_ns for path in parent.rglob("*")}
    words = (*WORDS, "budget.tokens=6000", f"runs={tmp_path}")
    with pytest.raises(CheckpointError, match=r"step-00000031: it is missing: .*step-00000030"):
        commands.train(*words, f"continue_from={parent}")
    words = (*words, f"continue_from={commands.newest_checkpoint(parent)}")
    folder = commands.train(*words)
    found = commands.result(folder)
    assert folder.parent.name != commands.settings(*WORDS, "budget.tokens=6000").folder.parent.name
    assert found["parent"]["step"] == 30
    assert found["parent"]["path"] == str(commands.newest_checkpoint(parent))
    assert found["status"] == "complete"
    assert found["training"]["steps"] == 46
    assert commands.rows(folder)[0]["step"] > 30
    ended = load_file(commands.newest_checkpoint(folder) / "model.safetensors")
    assert any(not torch.equal(tensor, ended[name]) for name, tensor in start.items())
    assert {path: path.stat().st_mtime_ns for path in parent.rglob("*")} == files
    (folder / "result.json").unlink()
    commands.train(*words)  # it has checkpoints of its own now
    assert commands.result(folder)["parent"] == found["parent"]
    record("F17", "fork of a run with another budget", 1, "own run key, parent and its step recorded")


def test_a_fork_of_no_run_is_refused(tmp_path: Path, finished: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        commands.settings(*WORDS, f"continue_from={tmp_path}/nothing")
    with pytest.raises(ConfigError, match="choose where training starts"):
        commands.settings(*commands.RECALL, f"continue_from={finished}", f"init_from={finished}")


def test_a_corpus_that_is_edited_while_a_run_is_interrupted_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    """The file keeps its size and its time. Restored, the run goes on, with more threads not exactly."""
    paths = {name: tmp_path / f"{name}.txt" for name in ("train", "held_out")}
    for name, path in paths.items():
        path.write_text(f"some words of {name}. " * 800)
    words = (
        *commands.TINY, "task=text", "task.source=files", f"task.paths=[{paths['train']}]",
        f"task.validation_paths=[{paths['held_out']}]", f"task.test_paths=[{paths['held_out']}]",
        "task.sequence_length=64", f"task.cache_dir={tmp_path}/cache", f"runs={tmp_path}/runs",
        "trainer.checkpoint_every=2",
    )  # fmt: skip
    honest = Trainer.train_step

    def stopped(self: Trainer) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return honest(self)

    monkeypatch.setattr(Trainer, "train_step", stopped)
    with pytest.raises(Preempted):
        commands.train(*words)
    monkeypatch.setattr(Trainer, "train_step", honest)
    for path in paths.values():
        before, stat = path.read_bytes(), path.stat()
        path.write_bytes(b"S" + before[1:])
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        with pytest.raises(DataError, match="the data has changed since this run began"):
            commands.train(*words)
        path.write_bytes(before)
    resume = commands.result(commands.train(*words, "device.threads=2"))["resume"]
    assert (resume["exact"], resume["changed"]) == (False, {"device.threads": [1, 2]})
    record("F18", "corpus edited while a run was interrupted, size and time restored", 2, "exit 3")
    record("F18", "another number of threads on resuming", 1, "continued, not `exact`")
