"""F44: what a preparation takes, is told before it begins, and what killed ones left is removed."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from archbench.experiments.data import cache_room, local_files, token_file
from archbench.experiments.data.cache_room import LOCK, remove_leftovers, work_folder
from archbench.experiments.data.corpus import CorpusConfig
from archbench.experiments.data.local_files import parquet_bytes, read_files
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.run.plan import build_task
from archbench.experiments.runtime.errors import CheckpointError, DataError
from archbench.experiments.runtime.process_identity import this_process
from tests.experiments import commands
from tests.faults.children import fork, in_a_child
from tests.faults.test_fault_storage import small_disk


def unfolding(folder: Path, rows: int) -> Path:
    """A Parquet file of some kilobytes whose text is ``rows`` MiB."""
    path = folder / "bomb.parquet"
    column = pyarrow.DictionaryArray.from_arrays([0] * rows, ["a" * 2**20])
    table = pyarrow.table({"text": column.cast(pyarrow.string())})
    pyarrow.parquet.write_table(table, path, compression="zstd")
    return path


def test_a_parquet_file_that_unfolds_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    path = unfolding(tmp_path, 100)
    assert path.stat().st_size < 20_000
    assert parquet_bytes(path, "text") == pytest.approx(100 * 2**20, rel=0.01)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache_room.shutil, "disk_usage", lambda _: usage._replace(free=150 * 2**20))
    corpus = CorpusConfig(source="files", paths=[str(path)])
    with pytest.raises(CheckpointError, match=r"takes about 210MB, and 157MB are free.*cache_dir="):
        open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    record("F44", "Parquet of kilobytes that unfolds to more than the disk", 1, "exit 6 with both figures")


def test_large_rows_are_unpacked_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked, honest = unfolding(tmp_path, 20), [], local_files._blocks

    def blocks(*arguments: Any) -> Any:
        asked.append(arguments[3])
        return honest(*arguments)

    monkeypatch.setattr(local_files, "_blocks", blocks)
    monkeypatch.setattr(local_files, "BLOCK", 2**21)
    assert len(list(read_files([path], "text"))) == 20
    assert asked[-1] <= 2


def test_large_rows_after_small_ones_are_unpacked_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    path, asked, honest = tmp_path / "later.parquet", [], local_files._blocks
    rows = pyarrow.DictionaryArray.from_arrays([0] * 16 + [1] * 20, ["a", "a" * 2**20])
    table = pyarrow.table({"text": rows.cast(pyarrow.string())})
    pyarrow.parquet.write_table(table, path, compression="zstd")

    def blocks(*arguments: Any) -> Any:
        asked.append(arguments[3])
        return honest(*arguments)

    monkeypatch.setattr(local_files, "_blocks", blocks)
    assert len(list(read_files([path], "text"))) == 36
    assert asked[-1] <= 8
    record("F44", "Parquet whose rows are small at first and large later", 1, "8 rows unpacked at once")


def test_a_parquet_file_that_is_cut_names_itself(tmp_path: Path) -> None:
    path = unfolding(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"bomb\.parquet: not a Parquet file"):
        list(read_files([path], "text"))


def text(folder: Path, size: int) -> CorpusConfig:
    path = folder / "input.txt"
    path.write_text("".join(f"{number:07d} " for number in range(size // 8)))
    return CorpusConfig(source="files", paths=[str(path)])


def test_what_a_killed_preparation_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    cache, corpus = tmp_path / "cache", text(tmp_path, 8000)

    def die(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        token_file.publish = die
        open_token_file(corpus, TokenizerConfig(), 28, cache)

    assert in_a_child(work) == -signal.SIGKILL
    (left,) = cache.glob(".*-*")
    assert (left / LOCK).exists()
    old = cache / f".{KEY}-old"  # its process ended before it held a lock
    old.mkdir()
    os.utime(old, (1, 1))
    opened = open_token_file(corpus, TokenizerConfig(), 28, cache)
    assert list(cache.iterdir()) == [opened.folder]
    assert not (opened.folder / LOCK).exists()
    record("F44", "SIGKILL while tokens are prepared", 1, "leftovers removed by the next run")


KEY = "0123456789abcdef"
NODE7 = {"host": "node7", "pid": 4711, "started": "1", "boot": "b", "namespace": "n"}


def test_what_another_machine_prepares_is_left_alone(tmp_path: Path, record: Any) -> None:
    """A lock of the system would be free here: ``localflock`` of Lustre, ``local_lock`` of NFS."""
    rng = random.Random(seed := 9)
    here = this_process()
    for case in range(20):
        other = rng.choice([{"host": "node7"}, {"boot": "b"}, {"namespace": "n"}, NODE7])
        lock = rng.choice([json.dumps(here | other), json.dumps(NODE7)[:-9], "", "[]", '{"pid": true}', None])
        work = tmp_path / rng.choice([f".{KEY}-{case}", f"..{KEY}.parts-{case}"])
        work.mkdir()
        if lock is not None:
            (work / LOCK).write_text(lock)
        (work / "train.bin").touch()
        hours, expected = rng.choice([(0, True), (25, True), (6 * 24, True), (8 * 24, False)])
        for path in [*work.iterdir(), work]:
            os.utime(path, (time.time() - hours * 3600,) * 2)
        remove_leftovers(tmp_path)
        assert work.exists() == expected, f"seed {seed}, case {case}: {lock}, {hours} hours"
        if expected and hours:
            (work / "train.bin").touch()  # it is being written
            os.utime(work, (0, 0))
            remove_leftovers(tmp_path)
            assert work.exists(), f"seed {seed}, case {case}"
    injected = f"preparations of other machines, and with damaged locks (seed {seed})"
    record("F44", injected, 20, "left alone for a week")


def test_folders_that_are_no_preparations_are_left_alone(tmp_path: Path) -> None:
    """A cache may be a home folder."""
    for name in (".local-share", ".oh-my-zsh", f".{KEY}", f".{KEY}.parts", f"{KEY}-x", ".0123-abcd"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1, 1))
    before = sorted(tmp_path.iterdir())
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_what_another_process_prepares_is_left_alone(tmp_path: Path) -> None:
    def prepare() -> None:
        with work_folder(tmp_path / "cache" / KEY):
            (tmp_path / "ready").touch()
            time.sleep(60)

    child = fork(prepare)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    remove_leftovers(tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob(f".{KEY}-*"))) == 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    remove_leftovers(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_a_full_cache_disk_is_storage(tmp_path: Path, kind: str, record: Any) -> None:
    corpus = text(tmp_path, 400_000)
    tokenizer = TokenizerConfig(kind=kind, vocab_size=300)

    def prepare(_: Any) -> Any:
        return open_token_file(corpus, tokenizer, 28, tmp_path / "disk" / "c")

    def work() -> None:
        try:
            small_disk(tmp_path / "disk", "128k")
        except OSError:  # no right to mount: the system refuses to let a file grow
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**17, resource.RLIM_INFINITY))
        cache_room.check_room = token_file.check_room = lambda *_: None
        with pytest.raises(CheckpointError, match="cannot be stored") as refused:
            build_task(prepare, None, "x")  # type: ignore[arg-type]
        assert list((tmp_path / "disk" / "c").iterdir()) == []
        os._exit(refused.value.exit_code)

    assert in_a_child(work) == 6
    record("F44", "disk of the cache full while tokens are written (tmpfs)", 2, "exit 6, nothing left behind")


@pytest.mark.full
@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_signal_in_any_command_that_prepares_ends_with_75(
    tmp_path: Path, command: str, record: Any
) -> None:
    for number in range(40):  # so much that preparing it takes seconds
        words = " ".join(str((number * 10**6 + place) * 7919) for place in range(100_000))
        (tmp_path / f"{number}.txt").write_text(words)
    corpus = ("task=text", "task.source=files", f"task.paths=[{tmp_path}/*.txt]", "task.sequence_length=32")
    for name in ("SIGTERM", "SIGUSR1"):
        asked = (*commands.TINY, *corpus, f"task.cache_dir={tmp_path}/cache", f"runs={tmp_path}/runs")
        process = commands.start(command, *asked)
        until = time.monotonic() + 120
        while not list((tmp_path / "cache").glob(".*-*")) and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(getattr(signal, name))
        _, said = process.communicate(timeout=60)
        assert process.returncode == 75, said
        assert "Traceback" not in said
        assert not list((tmp_path / "cache").glob(".*-*"))
    record("F11", f"signal while archbench {command} prepares data", 2, "exit 75, nothing left behind")
