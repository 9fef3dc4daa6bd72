import json
import multiprocessing
import os

import numpy as np
import pytest

from archbench.experiments.data import cache_room, token_file
from archbench.experiments.data.corpus import SPLITS, CorpusConfig
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError

BPE = TokenizerConfig(kind="bpe", vocab_size=270)
EOS = 258


@pytest.fixture
def corpus(tmp_path):
    """Files for every split, a few short documents in each."""
    (tmp_path / "text").mkdir()
    texts = {
        "train": [f"training text number {i}, the text to train on\n" for i in range(50)],
        "validation": ["validation text", "é"],
        "test": ["the first test text", "", "the second"],
    }
    for split, documents in texts.items():
        lines = [json.dumps({"text": text}) for text in documents]
        (tmp_path / "text" / f"{split}.jsonl").write_text("\n".join(lines))
    paths = {s: [str(tmp_path / "text" / f"{s}.jsonl")] for s in SPLITS}
    return CorpusConfig(
        source="files",
        paths=paths["train"],
        validation_paths=paths["validation"],
        test_paths=paths["test"],
    )


def visible(folder):
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_the_files_hold_the_bytes_of_each_document_and_eos(corpus, tmp_path):
    file = open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    assert file.tokens["validation"].tolist() == [*b"validation text", EOS, 0xC3, 0xA9, EOS]
    assert file.tokens["test"].tolist() == [*b"the first test text", EOS, *b"the second", EOS]
    assert file.meta["splits"]["validation"] == {"documents": 2, "bytes": 17, "tokens": 19}
    assert file.meta["splits"]["test"] == {"documents": 2, "bytes": 29, "tokens": 31}
    assert file.meta["splits"]["train"]["documents"] == 50
    on_disk = np.fromfile(file.folder / "train.bin", dtype="<u2")
    assert on_disk.tolist() == file.tokens["train"].tolist()
    assert file.meta["tokenizer"]["kind"] == "bytes"
    assert file.meta["source"]["settings"]["paths"] == corpus.paths
    assert set(file.meta["references"]) == {"unigram", "bigram", "5-gram", "xz"}
    assert len(file.fingerprint) == 16


def test_bpe_learns_from_the_training_split_only(corpus, tmp_path):
    before = open_token_file(corpus, BPE, 28, tmp_path / "cache")
    with open(corpus.test_paths[0], "a") as test:
        test.write("\n" + json.dumps({"text": "zyzzyva " * 1000}))
    after = open_token_file(corpus, BPE, 28, tmp_path / "cache")
    assert after.folder != before.folder
    assert len(after.tokens["test"]) > len(before.tokens["test"]) + 1000
    learned = [(f.folder / "tokenizer.json").read_bytes() for f in (before, after)]
    assert learned[0] == learned[1]
    assert after.fingerprint != before.fingerprint


def test_a_prepared_folder_is_used_again_and_not_written(corpus, tmp_path, monkeypatch):
    first = open_token_file(corpus, BPE, 28, tmp_path / "cache")

    def prepare_again(*arguments):
        raise AssertionError("prepared twice")

    monkeypatch.setattr(token_file, "_prepare", prepare_again)
    second = open_token_file(corpus, BPE, 28, tmp_path / "cache")
    assert second.folder == first.folder
    assert all(np.array_equal(first.tokens[s], second.tokens[s]) for s in SPLITS)
    with pytest.raises(AssertionError, match="prepared twice"):
        open_token_file(corpus, TokenizerConfig(kind="bpe", vocab_size=269), 28, tmp_path / "cache")


def test_the_fingerprint_follows_content_and_tokenizer_not_the_place(corpus, tmp_path):
    here = open_token_file(corpus, BPE, 28, tmp_path / "here")
    os.utime(corpus.paths[0], (1, 1))
    there = open_token_file(corpus, BPE, 28, tmp_path / "there")
    assert there.folder.name == here.folder.name  # of the content, not of its time
    assert there.fingerprint == here.fingerprint
    others = [
        open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "here"),
        open_token_file(corpus, TokenizerConfig(normalization=["nfc"]), 28, tmp_path / "here"),
        open_token_file(corpus, BPE, 27, tmp_path / "here"),
    ]
    assert len({here.fingerprint, *(f.fingerprint for f in others)}) == 4


def test_the_batches_of_preparation_leave_no_trace(corpus, tmp_path, monkeypatch):
    large = open_token_file(corpus, BPE, 28, tmp_path / "large")
    monkeypatch.setattr(token_file, "_BATCH_DOCUMENTS", 3)
    monkeypatch.setattr(token_file, "_BATCH_CHARACTERS", 100)
    small = open_token_file(corpus, BPE, 28, tmp_path / "small")
    for name in visible(large.folder):
        assert (large.folder / name).read_bytes() == (small.folder / name).read_bytes()


def test_large_vocabularies_get_wider_tokens(corpus, tmp_path):
    file = open_token_file(corpus, TokenizerConfig(), 70_000, tmp_path / "cache")
    assert file.tokens["test"].dtype == np.dtype("<u4")
    assert file.tokens["test"][:4].tolist() == [*b"the "]
    assert file.tokens["test"][-1] == EOS


def open_in_process(corpus, cache, barrier, results):
    barrier.wait()
    file = open_token_file(corpus, BPE, 28, cache)
    results.put((file.fingerprint, file.tokens["train"].tolist()))


def test_processes_that_prepare_at_once_all_succeed(corpus, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    arguments = (corpus, tmp_path / "cache", barrier, results)
    processes = [context.Process(target=open_in_process, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert found[0] == found[1] == found[2]
    assert len(visible(tmp_path / "cache")) == 1


def test_the_loser_of_a_race_uses_what_the_winner_wrote(corpus, tmp_path, monkeypatch):
    prepare = token_file._prepare
    winner = []

    def overtaken(*arguments):
        prepare(*arguments)
        monkeypatch.setattr(token_file, "_prepare", prepare)
        winner.append(open_token_file(corpus, BPE, 28, tmp_path / "cache"))

    monkeypatch.setattr(token_file, "_prepare", overtaken)
    loser = open_token_file(corpus, BPE, 28, tmp_path / "cache")
    assert len(winner) == 1
    assert loser.fingerprint == winner[0].fingerprint
    assert visible(tmp_path / "cache") == [loser.folder.name]


@pytest.mark.parametrize(
    ("line", "message"),
    [(b'{"text": "\xff"}', r"train\.jsonl: byte \d+ \(0xff\)"), (b'{"txt": "a"}', "no column 'text'")],
)
def test_a_failed_preparation_leaves_nothing_behind(corpus, tmp_path, line, message):
    with open(corpus.paths[0], "ab") as train:
        train.write(b"\n" + line)
    with pytest.raises(DataError, match=message):
        open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    assert visible(tmp_path / "cache") == []


def test_white_space_is_no_text_and_refused_with_the_counts(tmp_path):
    (tmp_path / "one.txt").write_text(" \n" * 500)
    corpus = CorpusConfig(source="files", paths=[str(tmp_path / "one.txt")])
    with pytest.raises(DataError, match=r"only white space in the \w+ split .*validation_paths"):
        open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    assert visible(tmp_path / "cache") == []


def test_one_document_is_split_by_position_with_a_gap_and_said_so(tmp_path):
    text = "".join(f"{number:07d} " for number in range(5000))
    (tmp_path / "input.txt").write_text(text)
    corpus = CorpusConfig(source="files", paths=[str(tmp_path / "input.txt")])
    file = open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    parts = {split: bytes(file.tokens[split][:-1].astype("u1")).decode() for split in SPLITS}
    places = {split: text.index(part) for split, part in parts.items()}
    ends = {split: places[split] + len(part) for split, part in parts.items()}
    assert places["train"] == 0
    assert ends["train"] + 400 == places["validation"]
    assert ends["validation"] + 400 == places["test"]
    assert ends["test"] == len(text)
    assert min(len(parts["validation"]), len(parts["test"])) >= 1600
    again = open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    assert file.note == again.note
    assert "validation and test are the end of each, after a gap" in str(file.note)


def test_documents_that_fill_every_split_are_not_cut(corpus, tmp_path):
    assert open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache").note is None


def test_a_damaged_cache_is_reported_with_the_remedy(corpus, tmp_path):
    file = open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    with open(file.folder / "test.bin", "ab") as tokens:
        tokens.truncate(10)
    with pytest.raises(DataError, match=r"test\.bin: 10 bytes, expected 62; delete"):
        open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")
    (file.folder / "meta.json").write_text("{")
    with pytest.raises(DataError, match=r"meta\.json: is damaged"):
        open_token_file(corpus, TokenizerConfig(), 28, tmp_path / "cache")


def test_long_preparation_prints_where_it_stands(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(token_file, "_PROGRESS_SECONDS", 0.0)
    open_token_file(corpus, BPE, 28, tmp_path / "cache")
    printed = capsys.readouterr().err
    assert "learning a tokenizer: 50 documents" in printed
    assert "writing tokens: 55 documents" in printed


def test_a_folder_that_does_not_name_its_process_yet_is_in_use(tmp_path, monkeypatch):
    """Another process looks for leftovers before the name of the process is written."""
    write = cache_room.write_json

    def looked_at_first(path, tree):
        cache_room.remove_leftovers(tmp_path)
        write(path, tree)

    monkeypatch.setattr(cache_room, "write_json", looked_at_first)
    with cache_room.work_folder(tmp_path / "0123456789abcdef") as work:
        assert work.exists()
        cache_room.remove_leftovers(tmp_path)
        assert work.exists()
    assert not work.exists()


def test_a_prepared_folder_has_the_permissions_of_the_umask(tmp_path) -> None:
    """It was readable for everybody, whatever the umask."""
    for mask, mode in ((0o077, 0o700), (0o027, 0o750), (0o022, 0o755)):
        (work := tmp_path / f"work-{mask}").mkdir(mode=0o700)
        before = os.umask(mask)
        try:
            token_file.publish(work, folder := tmp_path / f"folder-{mask}")
        finally:
            os.umask(before)
        assert folder.stat().st_mode & 0o777 == mode
