"""The cache of a study never shows in what is loaded, only in what has to be read for it."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pandas as pd
import pytest

from archbench.analysis.load import cache as frame_cache
from archbench.analysis.load.cache import NAME
from archbench.analysis.load.run_record import RunRecord
from archbench.analysis.load.study import load_history, load_study
from tests.results import write_result

OLD = count(10**9)
"""Seconds of the past, each used once."""


def settle(root: Path) -> None:
    """Makes every file under a folder one that was changed long ago."""
    for path in root.rglob("*"):
        if path.is_file() and path.name != NAME:
            os.utime(path, (second := next(OLD), second))


@pytest.fixture
def old_study(study: Path) -> Path:
    settle(study)
    return study


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run folders that are read from here on."""
    folders: list[str] = []
    original = frame_cache.read_run

    def read_run(folder: Path) -> RunRecord:
        folders.append("/".join(folder.parts[-2:]))
        return original(folder)

    monkeypatch.setattr(frame_cache, "read_run", read_run)
    return folders


def load(runs: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    return load_study(runs, "compare"), load_history(runs, "compare")


def assert_as_without_cache(runs: Path) -> None:
    cache = runs / "compare" / NAME
    found, kept = load(runs), cache.read_bytes() if cache.exists() else b""
    for load_one, with_cache in zip((load_study, load_history), found, strict=True):
        cache.unlink(missing_ok=True)
        pd.testing.assert_frame_equal(with_cache, load_one(runs, "compare"))
    cache.write_bytes(kept)


def test_whatever_changes_the_frames_are_those_of_the_folders(
    old_study: Path, write_run: Callable[..., Path]
) -> None:
    chance = random.Random(0)
    root = old_study / "compare"

    def append(folder: Path) -> None:
        row = {"kind": "train", "step": 60, "loss": chance.random(), f"extra_{chance.randint(0, 2)}": 1}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def tear(folder: Path) -> None:
        text = (folder / "metrics.jsonl").read_text()
        (folder / "metrics.jsonl").write_text(text[: chance.randrange(len(text))])

    def same_size(folder: Path) -> None:
        text = (folder / "metrics.jsonl").read_text()
        digits = [i for i, letter in enumerate(text) if letter in "123456789" and text[i - 1] == "."]
        place = chance.choice(digits)
        (folder / "metrics.jsonl").write_text(text[:place] + str(chance.randint(1, 9)) + text[place + 1 :])

    def configure(folder: Path) -> None:
        (folder / "config.yaml").write_text(f"optimizer:\n  learning_rate: {chance.random():.6f}\n")

    def kill(folder: Path) -> None:
        (folder / "result.json").unlink(missing_ok=True)

    def replace(folder: Path) -> None:
        other = chance.choice(sorted(root.glob("*/s*")))
        shutil.copy2(other / "metrics.jsonl", folder / "new")  # keeps the times of the other
        (folder / "new").replace(folder / "metrics.jsonl")

    numbers = count()

    def add(folder: Path) -> None:
        write_run("mamba", next(numbers), chance.random(), digest="new")

    changes = (append, tear, same_size, configure, kill, replace, add, shutil.rmtree)
    for change in (*changes, *chance.choices(changes, k=8)):
        folder = chance.choice(sorted(path for path in root.glob("*/s*") if list(path.iterdir())))
        change(folder)
        if chance.random() < 0.7:
            settle(folder if folder.exists() else root / "nothing")
        assert_as_without_cache(old_study)


def test_only_what_is_new_or_changed_is_read(
    old_study: Path, read: list[str], write_run: Callable[..., Path]
) -> None:
    load(old_study)
    assert len(read) == 30
    read.clear()
    load(old_study)
    assert read == []
    changed = next((old_study / "compare").glob("mamba-causal_lm-text-*/s1"))
    write_result(changed, json.loads((changed / "result.json").read_text().replace("2.4", "2.5")))
    new = write_run("mamba", 7)
    settle(changed)
    settle(new)
    shutil.rmtree(next((old_study / "compare").glob("s4-*-recall-*")))
    frame, history = load(old_study)
    assert sorted(read) == [f"{changed.parent.name}/s1", f"{new.parent.name}/s7"]
    assert len(frame) == 28
    assert set(history["path"]) == set(frame["path"])


def test_several_processes_read_what_one_reads(old_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (next((old_study / "compare").glob("mamba-*/s1")) / "config.yaml").write_text("[")
    expected = load(old_study)
    monkeypatch.setattr(frame_cache, "CHUNK", 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    (old_study / "compare" / NAME).unlink()
    for found, alone in zip(load(old_study), expected, strict=True):
        pd.testing.assert_frame_equal(found, alone)


def test_a_run_that_was_just_changed_is_read_again(study: Path, read: list[str]) -> None:
    """Its next change might leave size and times as they are."""
    load(study)
    load(study)
    assert len(read) == 4 * 30
    assert not (study / "compare" / NAME).exists()


def test_other_code_reads_everything_again(
    old_study: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(old_study)
    read.clear()
    monkeypatch.setattr(frame_cache, "CODE", "another")
    load(old_study)
    assert len(read) == 30
    load(old_study)
    assert len(read) == 30


def test_a_broken_cache_is_made_anew(old_study: Path) -> None:
    frames = load(old_study)
    cache = old_study / "compare" / NAME
    whole, chance = cache.read_bytes(), random.Random(0)
    damaged = [b"", b"no parquet", whole[:-100], whole[: len(whole) // 2]]
    for _ in range(40):
        place = chance.randrange(len(whole))
        damaged.append(
            whole[:place] + bytes([whole[place] ^ (1 << chance.randrange(8))]) + whole[place + 1 :]
        )
    other = pd.DataFrame({"run": [1, 2]}).to_parquet()
    assert other is not None
    damaged += [other, struct.pack("<I", zlib.crc32(other)) + other, struct.pack("<I", 0)]
    for content in damaged:
        cache.write_bytes(content)
        for found, expected in zip(load(old_study), frames, strict=True):
            pd.testing.assert_frame_equal(found, expected)


def test_where_no_cache_can_be_written_everything_is_read(old_study: Path, read: list[str]) -> None:
    (old_study / "compare" / NAME).mkdir()
    frames = load(old_study)
    assert [len(frame) for frame in frames] == [30, 300]
    assert len(read) == 60
    assert sorted(path.name for path in (old_study / "compare").glob("*frame*")) == [NAME]


def test_a_study_may_be_moved(old_study: Path, read: list[str]) -> None:
    load(old_study)
    read.clear()
    (old_study / "compare").rename(old_study / "other")
    frame, history = load_study(old_study, "other"), load_history(old_study, "other")
    assert read == []
    assert set(frame["study"]) == {"other"}
    assert set(frame["path"]) == set(history["path"])
    assert all(Path(path).is_dir() for path in frame["path"])
