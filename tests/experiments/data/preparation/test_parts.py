"""Parts made by any processes in any order come to the token files that one process writes by itself."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from archbench.experiments.data.preparation import merge as merging
from archbench.experiments.data.preparation.merge import merge, needed_parts
from archbench.experiments.data.preparation.part import Worker, record_of
from archbench.experiments.data.preparation.plan import Preparation, begin
from archbench.experiments.data.preparation.processes import make_parts
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from tests.experiments.data.preparation.conftest import ROWS, corpus, texts, write

BYTES, BPE = TokenizerConfig(), TokenizerConfig(kind="bpe", vocab_size=280, post_processing=["bos", "eos"])


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def alone(
    folder: Path, cache: Path, tokenizer: TokenizerConfig = BYTES, **changes: object
) -> dict[str, bytes]:
    """The files that one process writes, row after row, without parts."""
    return files(open_token_file(corpus(folder, **changes), tokenizer, 2, cache).folder)


def begun(folder: Path, cache: Path, tokenizer: TokenizerConfig = BYTES, **changes: object) -> Preparation:
    return begin(corpus(folder, **changes), tokenizer, 2, cache)


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("limit", [None, 34, 107, 10_000])
def test_parts_come_to_the_files_of_one_process(dataset, tmp_path, tokenizer, limit, monkeypatch):
    preparation = begun(dataset, tmp_path / "parts", tokenizer, max_documents=limit)
    assert [(p.split, p.of) for p in preparation.parts()] == [("train", 10)] * 10 + [("test", 3)] * 3
    monkeypatch.setattr(merging, "_CHUNK", 300)  # several chunks to a part
    made = make_parts(preparation, 1)
    merge(preparation)
    assert files(preparation.destination) == alone(dataset, tmp_path / "one", tokenizer, max_documents=limit)
    assert not preparation.folder.exists()
    needed = {34: 1 + 3, 107: 4 + 3}.get(limit, 13)  # row groups of 34, 34, 32, 10 ...
    assert made.made == needed, "no part beyond max_documents is made"


def test_a_split_without_text_is_refused_as_by_one_process(dataset, tmp_path):
    preparation = begun(dataset, tmp_path / "parts", max_documents=1)
    make_parts(preparation, 1)
    for prepare in (lambda: merge(preparation), lambda: alone(dataset, tmp_path / "one", max_documents=1)):
        with pytest.raises(DataError, match=r"no text in the (train|validation) split"):
            prepare()
    assert not preparation.destination.exists()


def test_shares_in_any_order_and_by_several_processes_are_the_same(dataset, tmp_path):
    expected = alone(dataset, tmp_path / "one")
    preparation = begun(dataset, tmp_path / "parts")
    for index in (2, 0, 1):
        make_parts(preparation, 2 if index == 0 else 1, (index, 3))
    assert make_parts(preparation, 1).made == 0
    merge(preparation)
    assert files(preparation.destination) == expected


def test_a_part_made_twice_at_once_or_cut_off_does_no_harm(dataset, tmp_path):
    preparation = begun(dataset, tmp_path / "parts")
    parts = list(preparation.parts())
    random.Random(1).shuffle(parts)
    workers = [Worker(preparation), Worker(preparation)]
    for part in parts:
        for worker in workers:
            worker.write(part)
    cut = preparation.folder / f"{parts[0].name}.tokens"
    cut.write_bytes(cut.read_bytes()[:-2])
    (preparation.folder / f"{parts[1].name}.json").write_text("{")
    assert record_of(preparation.folder, parts[0]) is None
    with pytest.raises(DataError, match="2 of 13 parts are missing"):
        merge(preparation)
    assert make_parts(preparation, 1).made == 2
    merge(preparation)
    assert files(preparation.destination) == alone(dataset, tmp_path / "one")


def test_a_part_that_has_changed_is_discarded_and_made_anew(dataset, tmp_path):
    preparation = begun(dataset, tmp_path / "parts")
    make_parts(preparation, 1)
    path = preparation.folder / "train-00003-of-00010.tokens"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"train-00003-of-00010\.tokens: has changed .*was discarded"):
        merge(preparation)
    assert not preparation.destination.exists()
    assert make_parts(preparation, 1).made == 1
    merge(preparation)
    assert files(preparation.destination) == alone(dataset, tmp_path / "one")


def test_document_boundaries_are_kept(dataset, tmp_path):
    preparation = begun(dataset, tmp_path / "parts")
    make_parts(preparation, 1)
    records = [record for _, record in needed_parts(preparation) if record is not None]
    assert sum(record["rows"] for record in records) == ROWS + 30
    merge(preparation)
    opened = open_token_file(corpus(dataset), BYTES, 2, tmp_path / "parts")
    found = {}
    for split in ("train", "validation", "test"):
        ends = np.flatnonzero(opened.tokens[split] == opened.tokenizer.vocabulary.eos)
        assert len(ends) == opened.meta["splits"][split]["documents"]
        found[split] = [
            opened.tokenizer.decode(part) for part in np.split(opened.tokens[split], ends + 1)[:-1]
        ]
    assert found["test"] == [text for text in texts("test", 30) if text]
    assert sorted(found["train"] + found["validation"]) == sorted(
        text for text in texts("train", ROWS) if text
    )
    in_order = [text for text in texts("train", ROWS) if text.strip() and text in set(found["train"])]
    assert [text for text in found["train"] if text.strip()] == in_order


def test_a_dataset_that_changes_meanwhile_is_refused(dataset, tmp_path):
    preparation = begun(dataset, tmp_path / "parts")
    write(dataset, "train-00003-of-00003", ["one more"], row_group=1)
    with pytest.raises(DataError, match=r"is not as it was .*train-00003-of-00003.*set task\.revision"):
        Worker(preparation).write(next(preparation.parts()))
    again = begun(dataset, tmp_path / "parts")
    assert again.folder != preparation.folder, "a local folder is known by its content"


def test_a_plan_of_other_settings_is_refused(dataset, tmp_path):
    preparation = begun(dataset, tmp_path / "parts")
    path = preparation.folder / "plan.json"
    record = json.loads(path.read_text())
    record["settings"]["format"] = 0
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"plan\.json: is of other settings: remove"):
        begun(dataset, tmp_path / "parts")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column": "boddy"}, "part 0 of 10, row 0 of it: no column 'boddy'; did you mean 'body'"),
        ({"column": "score"}, "row 0 of it: column 'score' holds int, not text"),
        ({"train_split": "tran"}, "split 'tran': no such split; there are: train, test"),
    ],
)
def test_what_is_wrong_with_a_row_or_split_is_said(dataset, tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        make_parts(begun(dataset, tmp_path / "parts", **changes), 1)
