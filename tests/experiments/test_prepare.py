"""``archbench prepare``: its words, and real processes of it that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archbench.experiments.config.options import split_words
from archbench.experiments.prepare import PrepareConfig
from archbench.experiments.runtime.errors import ConfigError
from tests import ROOT, SOURCE
from tests.experiments.data.preparation.conftest import dataset as dataset  # a fixture

PAUSE = """
import sys, time
from archbench.experiments.data.preparation import part

honest = part.Worker.write
def slow(worker, wanted):
    if wanted.index == 4:
        time.sleep(60)
    return honest(worker, wanted)
part.Worker.write = slow
"""
"""A sitecustomize: the fifth part of each split takes a minute."""


def command(dataset: Path, cache: Path, *words: str) -> list[str]:
    return [
        sys.executable, "-m", "archbench.experiments.prepare", "task=fineweb_edu", f"task.dataset={dataset}",
        "task.dataset_config=null", "task.column=body", "task.test_split=test", "task.sequence_length=16",
        f"task.cache_dir={cache}", f"runs={cache / 'runs'}", *words,
    ]  # fmt: skip


def run(*arguments: str, expected: int = 0) -> str:
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == expected, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def token_files(cache: Path) -> dict[str, bytes]:
    (meta,) = cache.glob("*/meta.json")
    return {path.name: path.read_bytes() for path in meta.parent.iterdir()}


def slow_start(folder: Path) -> dict[str, str]:
    """The environment of processes that stay at their fifth part."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PAUSE)
    return {**os.environ, "PYTHONPATH": f"{folder}:{SOURCE}"}


def wait_for_parts(cache: Path, count: int) -> list[Path]:
    end = time.monotonic() + 120
    while len(found := sorted(cache.glob(".*.parts/*.json"))) < count + 1:  # and plan.json
        assert time.monotonic() < end
        time.sleep(0.1)
    return [path for path in found if path.name != "plan.json"]


@pytest.mark.full
def test_a_killed_preparation_goes_on_and_the_files_are_the_same(dataset: Path, tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    process = subprocess.Popen(
        command(dataset, cache, "processes=2"),
        cwd=ROOT,
        env=slow_start(tmp_path / "slow"),
        start_new_session=True,
    )
    try:
        # The first process stays at part 4; the second makes all of its own: 1, 3, 5, 7, 9, two of test.
        done = wait_for_parts(cache, 2 + 5)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in done}
    assert "parts" in run(*command(dataset, cache, "processes=2", "stage=parts"))
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was done is not done again"
    printed = run(*command(dataset, cache, "processes=1"))
    assert "13 of 13 parts, 0 of them now" in printed
    assert "ready; examples: train" in printed
    assert "is prepared already" in run(*command(dataset, cache))
    printed = run(*command(dataset, other, "processes=1"))
    assert "13 of 13 parts, 13 of them now" in printed
    assert "MB/s" in printed
    assert token_files(cache) == token_files(other)


@pytest.mark.full
def test_a_process_that_is_killed_is_said_and_its_siblings_end(dataset: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = subprocess.Popen(
        command(dataset, cache, "processes=2"), cwd=ROOT, env=slow_start(tmp_path / "slow"),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_parts(cache, 2 + 5)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "a process was killed (exit code -9)" in said
    assert "run the same command again" in said
    assert "Traceback" not in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.full
def test_a_stopped_preparation_ends_at_once(dataset: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = subprocess.Popen(
        command(dataset, cache, "processes=2"), cwd=ROOT, env=slow_start(tmp_path / "slow"),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_parts(cache, 3)
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 75, said
    assert "Traceback" not in said


@pytest.mark.full
def test_an_error_of_a_process_is_that_of_the_command(dataset: Path, tmp_path: Path) -> None:
    said = run(*command(dataset, tmp_path / "c", "processes=2", "task.column=boddy"), expected=3)
    assert "no column 'boddy'; did you mean 'body'" in said


def test_other_data_is_prepared_as_by_a_run(tmp_path: Path) -> None:
    words = ("task=text", f"task.cache_dir={tmp_path / 'cache'}", f"runs={tmp_path / 'runs'}")
    printed = run(sys.executable, "-m", "archbench.experiments.prepare", "-m", *words, "seed=0,1")
    assert printed.count("text: ready; examples: train") == 1
    assert token_files(tmp_path / "cache")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["processes=0"], "processes=0 must be at least 1"),
        (["stage=part"], "stage=part is unknown; did you mean 'parts'"),
        (["stage=parts", "share=4/4"], "share=4/4 must be like 0/4"),
        (["stage=parts", "share=a"], "share=a must be like 0/4"),
        (["share=0/4"], "share=0/4 needs stage=parts"),
    ],
)
def test_a_bad_word_is_refused_with_the_remedy(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_words(PrepareConfig, words)


def test_shares_and_processes_come_from_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    config, others = split_words(PrepareConfig, ["task=text", "stage=parts", "share=2/3", "-m"])
    assert config.index_of() == (2, 3)
    assert others == ["task=text", "-m"]
    for name, value in {"ID": "6", "MIN": "4", "COUNT": "5"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    config, _ = split_words(PrepareConfig, ["stage=parts", "share=slurm"])
    assert config.index_of() == (2, 5)
    assert config.num_processes == 1
    assert PrepareConfig(processes=3).num_processes == 3


@pytest.mark.full
def test_kills_at_random_moments_leave_nothing_and_change_nothing(dataset: Path, tmp_path: Path) -> None:
    """Of the command alone: its processes end by themselves."""
    cache, other, chance = tmp_path / "cache", tmp_path / "other", random.Random(33)
    run(*command(dataset, other, "processes=1"))
    for _ in range(4):
        process = subprocess.Popen(
            command(dataset, cache, "processes=2"),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(1, 8))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        process.wait()
        end = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < end
            time.sleep(0.05)
    run(*command(dataset, cache, "processes=2"))
    assert token_files(cache) == token_files(other)
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []
