"""F46: random damage of the files of runs and of prepared data is found, or changes nothing."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.load.study import load_study
from archbench.experiments.check import check_study
from archbench.experiments.run.load_model import read_run
from archbench.experiments.run.model_files import read_model_spec
from archbench.experiments.run.summary import summary
from archbench.experiments.runtime.errors import Preempted, RunError
from archbench.experiments.runtime.preemption import Interruptions
from archbench.slurm.submission import StudyRun
from tests.experiments import commands
from tests.faults.children import seeds
from tests.faults.fuzzing import time_limit

WORDS = (*commands.TINY, "budget.tokens=2048", "trainer.log_every=5", "trainer.checkpoint_every=10")
CODES = {1, 2, 3, 5, 6, 7, 75}


def flip_bit(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def zero_half(data: bytes, rng: random.Random) -> bytes:
    half = len(data) // 2
    return bytes(half) + data[half:] if rng.random() < 0.5 else data[:half] + bytes(len(data) - half)


def other_digit(data: bytes, rng: random.Random) -> bytes:
    places = [place for place, byte in enumerate(data) if byte in b"0123456789"]
    if not places:
        return flip_bit(data, rng)
    place = rng.choice(places)
    return data[:place] + str((int(chr(data[place])) + rng.randint(1, 9)) % 10).encode() + data[place + 1 :]


def other_json(data: bytes, rng: random.Random) -> bytes:
    """Put a value of another type at a random place of a JSON tree."""
    try:
        tree = node = json.loads(data)
    except ValueError:
        return flip_bit(data, rng)
    while isinstance(node, dict) and node:
        key = rng.choice(sorted(node))
        if not isinstance(node[key], dict) or rng.random() < 0.4:
            node[key] = rng.choice((None, [], {}, "x", -1, 1e9, True, [[1]]))
            break
        node = node[key]
    return json.dumps(tree).encode()


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bit,
    zero_half,
    other_digit,
    other_json,
    lambda data, rng: data[: rng.randrange(len(data))],
    lambda data, rng: b"",
    lambda data, rng: data + rng.randbytes(rng.randint(1, 40)),
    lambda data, rng: b"[" * 100_000,
    lambda data, rng: b"{}",
    lambda data, rng: b"null",
    lambda data, rng: rng.randbytes(200),
    lambda data, rng: data * 2,
)


def damage(path: Path, rng: random.Random) -> str | None:
    """Damage a file, or remove it; return what was done in words, or None where it is as it was."""
    before = path.read_bytes()
    if rng.random() < 0.1:
        path.unlink()
        return f"{path.name} removed"
    kind = rng.choice(DAMAGES)
    after = kind(before, rng) if before else b"x"
    path.write_bytes(after)
    if after == before:
        return None
    place = next((i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), 0)
    was, now = before[place : place + 12], after[place : place + 12]
    return f"{path.name}: {len(before)} bytes, then {len(after)}; from byte {place} {was!r}, then {now!r}"


def words(folder: Path) -> tuple[str, ...]:
    text = ("task=text", "task.source=files", f"task.paths=[{folder}/text/*.txt]", "task.sequence_length=32")
    text += ("task.tokenizer.kind=bpe", "task.tokenizer.vocab_size=300")
    return (*WORDS, *text, f"task.cache_dir={folder}/cache", f"runs={folder}/runs")


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A study that has ended, and the same run stopped half-way."""
    made = {}
    for name in ("ended", "stopped"):
        folder = made[name] = tmp_path_factory.mktemp(name)
        (folder / "text").mkdir()
        for number in range(40):
            text = f"document {number} says " + f"{number * 7919} " * 40
            (folder / "text" / f"{number}.txt").write_text(text)
    commands.train(*words(made["ended"]))
    with pytest.MonkeyPatch.context() as patch:
        steps = iter(range(14))
        stop = property(lambda self: None if next(steps, None) is not None else "stopped by SIGTERM")
        patch.setattr(Interruptions, "reason", stop)
        with pytest.raises(Preempted):
            commands.train(*words(made["stopped"]))
    return made


def fresh(template: Path) -> Path:
    """Put a template back to what it was; its path is part of what was prepared and stays."""
    kept = template.with_name(f"{template.name}-kept")
    if not kept.exists():
        shutil.copytree(template, kept)
    else:
        shutil.rmtree(template)
        shutil.copytree(kept, template)
    return template


def refusal(work: Callable[..., object], *arguments: Any) -> RunError | None:
    """Return the error that a person would see, or None. Whatever else is raised ends the test."""
    try:
        work(*arguments)
    except RunError as error:
        return error
    return None


def files_of(folder: Path) -> list[Path]:
    found = [*folder.glob("runs/*/*/s0/**/*"), *folder.glob("cache/**/*")]
    # train.log is what was printed and decides nothing; a lock and marks are made anew.
    return sorted(path for path in found if path.is_file() and path.name not in ("train.log", "lock.json"))


@pytest.mark.full
@seeds(3, recorded=13)
def test_f46_damage_of_an_ended_run_is_said(templates: dict[str, Path], seed: int, record: Any) -> None:
    """Ten damages for each seed."""
    score = None
    for case in range(10):
        rng = random.Random(1000 * seed + case)
        folder = fresh(templates["ended"])
        run = next(folder.glob("runs/*/*/s0"))
        score = score or commands.result(run)["metrics"][0]["value"]
        done = damage(rng.choice(files_of(folder)), rng)
        about = f"seed {seed}, case {case}: {done}"
        with time_limit():
            report = check_study(folder / "runs" / "single")
            frame = load_study(folder / "runs", "single")
            assert summary(folder / "runs" / "single"), about
            status = StudyRun(key="k", name="n", seed=0, folder=str(run), words=[]).status
            refused = [refusal(read, run) for read in (read_model_spec, read_run)]
        assert all(each is None or each.exit_code in CODES for each in refused), about
        if done is None:
            assert report.exit_code == 0, about
            continue
        row = frame.iloc[0]
        if done == "result.json removed":  # as if it was killed at its end: it is run again
            assert row["status"] == "incomplete", about
            continue
        assert report.exit_code != 0, f"{about}: archbench check finds nothing"
        assert row["status"] != "complete" or row["score"] == score, f"{about}: score {row['score']}"
        assert status in ("complete", "unreadable", None), about
    record("F46", "random damage of a run that has ended, or of its data", 10, "found by archbench check")


@pytest.mark.full
@seeds(2, recorded=8)
def test_f46_damage_before_resuming_changes_no_result_in_silence(
    templates: dict[str, Path], seed: int, record: Any
) -> None:
    """Ten damages for each seed."""
    expected = commands.result(next(fresh(templates["ended"]).glob("runs/*/*/s0")))
    for case in range(10):
        rng = random.Random(1000 * seed + 500 + case)
        folder = fresh(templates["stopped"])
        run = next(folder.glob("runs/*/*/s0"))
        done = damage(rng.choice(files_of(folder)), rng)
        about = f"seed {seed}, case {case}: {done}"
        with time_limit():
            refused = refusal(commands.train, *words(folder))
        if refused is not None:
            assert refused.exit_code in CODES, about
            assert "Traceback" not in str(refused), f"{about}: {refused}"
            continue
        found = commands.result(run)
        same = [m["value"] for m in found["metrics"]] == [m["value"] for m in expected["metrics"]]
        assert same or not found["resume"]["exact"], f"{about}: another score, and exact"
        rows = len(commands.rows(run)) == len(commands.rows(next(templates["ended"].glob("runs/*/*/s0"))))
        assert rows or not found["resume"]["exact"], f"{about}: other rows, and exact"
    record("F46", "random damage before resuming", 10, "refused, mended, or not exact")
