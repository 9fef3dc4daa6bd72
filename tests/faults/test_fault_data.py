"""F33 and F34: prepared tokens and source files that change without a word."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.data import file_hashes
from archbench.experiments.data.corpus import SPLITS, CorpusConfig, documents, identity
from archbench.experiments.data.file_hashes import FileHashes
from archbench.experiments.data.token_file import TokenFile, open_token_file, read_meta, verify
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from tests.experiments import commands
from tests.faults.children import times


def write_corpus(folder: Path) -> CorpusConfig:
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"document {number} says " + f"{number * 7919} " * 40)
    return CorpusConfig(source="files", paths=[f"{folder}/*.txt"])


def prepared(tmp_path: Path) -> tuple[CorpusConfig, TokenFile]:
    corpus = write_corpus(tmp_path / "text")
    return corpus, open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")


def refused(corpus: CorpusConfig, tmp_path: Path) -> DataError:
    with pytest.raises(DataError, match=r"delete .* and run again to prepare it") as caught:
        open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    assert caught.value.exit_code == 3
    return caught.value


@pytest.mark.parametrize("split", SPLITS)
def test_f33_half_a_file_of_zeros_is_refused(tmp_path: Path, split: str, record: Any) -> None:
    corpus, file = prepared(tmp_path)
    path = file.folder / f"{split}.bin"
    data = path.read_bytes()
    path.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])
    assert f"{split}.bin: bytes 0 to" in str(refused(corpus, tmp_path))
    record("F33", f"first half of {split}.bin zero", 1, "exit 3, file and bytes named")


@times(30, 500)
def test_f33_one_changed_bit_is_refused(tmp_path: Path, times: int, record: Any) -> None:
    corpus, file = prepared(tmp_path)
    draw = random.Random(22)
    names = ["meta.json", *(f"{split}.bin" for split in SPLITS)]
    for _ in range(times):
        path = file.folder / draw.choice(names)
        data = bytearray(before := path.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            same = path.name == "meta.json" and json.loads(data) == json.loads(before)
        except ValueError:
            same = False
        if same:  # white space between values
            open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
        else:
            refused(corpus, tmp_path)
        path.write_bytes(before)
    open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    record("F33", "one bit flipped in prepared tokens or meta.json", times, "exit 3, file named")


def test_f33_a_large_file_is_sampled_when_opened_and_read_wholly_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.setattr(file_hashes, "CHUNK", 64)
    monkeypatch.setattr("archbench.experiments.data.token_file.SAMPLE", 12)
    corpus, file = prepared(tmp_path)
    path = file.folder / "train.bin"
    read: list[int] = []
    honest = file_hashes.sampled
    monkeypatch.setattr(
        "archbench.experiments.data.token_file.sampled",
        lambda count, most: (read.append(len(found := honest(count, most))), found)[1],
    )
    open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    assert sum(read) <= 12 + 2 * len(SPLITS)
    data = bytearray(path.read_bytes())
    assert len(data) > 64 * 100
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"train\.bin: bytes \d+ to"):
        verify(file.folder, read_meta(file.folder))
    path.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])
    refused(corpus, tmp_path)  # the first chunk is always read
    record("F33", "one bit of a large file", 1, "found by archbench check")


def test_f34_sources_are_known_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    corpus = write_corpus(tmp_path / "text")
    monkeypatch.setattr(file_hashes, "LARGE", 0)
    hashed: list[Path] = []
    honest = file_hashes.file_hash
    monkeypatch.setattr(file_hashes, "file_hash", lambda path: (hashed.append(path), honest(path))[1])
    cache = tmp_path / "cache"
    before = identity(corpus, cache)
    assert len(hashed) == 60
    monkeypatch.setattr(time, "time_ns", lambda: 2**62)  # all files have settled
    assert identity(corpus, cache) == before
    hashed.clear()
    assert identity(corpus, cache) == before
    assert not hashed  # large files are not read again
    path = tmp_path / "text" / "7.txt"
    stat = path.stat()
    path.write_text(path.read_text().replace("says", "said"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert identity(corpus, cache) != before
    assert hashed == [path]
    (cache / file_hashes.NAME).write_text("[" * 100_000)
    assert FileHashes(cache).of(path) == honest(path)
    record("F34", "source changed, its size and time kept", 1, "prepared anew")


def test_f34_equal_files_under_two_names_are_refused(tmp_path: Path, record: Any) -> None:
    corpus = write_corpus(tmp_path / "text")
    copy = tmp_path / "held_out.txt"
    copy.write_bytes((tmp_path / "text" / "3.txt").read_bytes())
    other = CorpusConfig(source="files", paths=corpus.paths, test_paths=[str(copy)])
    with pytest.raises(DataError, match=r"held_out\.txt: has the content of .*3\.txt"):
        identity(other)
    record("F34", "a training file under another name as test file", 1, "exit 3 with both names")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_documents_leave_no_split_empty(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"{number}.txt").write_text(f"{number} text " * 500)
    found = list(documents(CorpusConfig(source="files", paths=[f"{tmp_path}/*.txt"])))
    assert {split for split, document in found if document.text} == set(SPLITS)


@pytest.mark.full
def test_text_cut_by_position_is_said_in_every_run_and_the_parts_are_apart(tmp_path: Path) -> None:
    text = "".join(f"{number:06d} " for number in range(4000))
    (tmp_path / "input.txt").write_text(text)
    corpus = CorpusConfig(source="files", paths=[str(tmp_path / "input.txt")])
    parts = {split: document.text for split, document in documents(corpus)}
    ends = [(text.index(parts[split]), len(parts[split])) for split in SPLITS]
    assert sum(size for _, size in ends) > 0.97 * len(text)
    for (place, size), (after, _) in itertools.pairwise(sorted(ends)):
        assert after - place - size >= 0.009 * len(text)
    words = ("task=text", "task.source=files", f"task.paths=[{tmp_path}/*.txt]", "task.sequence_length=32")
    for seed in (0, 1):  # the second finds the text prepared
        folder = commands.train(
            *commands.TINY,
            *words,
            "budget.tokens=128",
            f"seed={seed}",
            f"task.cache_dir={tmp_path}/cache",
            f"runs={tmp_path}/runs",
        )
        assert "validation and test are the end of each" in commands.result(folder)["data_note"]
        assert "the end of each, after a gap" in (folder / "train.log").read_text()
