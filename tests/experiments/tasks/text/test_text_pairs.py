import json

import datasets
import huggingface_hub.constants
import pyarrow
import pyarrow.parquet
import pytest
import torch

from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.text.text_pairs import Pairs, PairsConfig


def numbered(count, name="pair"):
    return [{"source": f"{name} {i} in", "target": f"{name} {i} out"} for i in range(count)]


def write(path, rows):
    """Rows of strings in the format that the suffix names."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        mark = "," if path.suffix == ".csv" else "\t"
        lines = [mark.join(rows[0]), *(mark.join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    return str(path)


def files(folder, suffix=".jsonl", train=50, **settings):
    paths = {
        "paths": [write(folder / f"train{suffix}", numbered(train))],
        "validation_paths": [write(folder / f"validation{suffix}", numbered(5, "valid"))],
        "test_paths": [write(folder / f"test{suffix}", numbered(7, "test"))],
    }
    return PairsConfig(source="files", **(paths | settings))


def test_an_example_is_source_end_target_end():
    task = Pairs(PairsConfig(max_source=50, max_target=52))
    v = task.vocabulary
    batch = task.batch("train", 3, 100, 20)
    for row, pair in enumerate(task.pairs("train", 3, 100, 20)):
        source, target = list(pair.source.encode())[:50], list(pair.target.encode())
        end = [v.eos] if len(target) <= 52 else []
        expected = [*source, v.eos, *target[:52], *end]
        length = len(expected)
        assert batch.tokens_BT[row].tolist() == expected + [v.pad] * (104 - length)
        assert batch.valid_BT[row].tolist() == [True] * length + [False] * (104 - length)
        assert batch.answer_BT[row].nonzero().flatten().tolist() == list(range(len(source) + 1, length))
        assert (batch.bytes_BT[row] * batch.answer_BT[row]).sum() == min(len(target), 52)
        assert batch.references[row] == pair.target
    assert torch.equal(batch.tokens_BT, batch.context_BT)
    assert not batch.whole


def test_examples_are_a_function_of_split_seed_and_index(tmp_path):
    for task in (Pairs(PairsConfig()), Pairs(files(tmp_path))):
        whole = task.batch("train", 1, 10, 8)
        part = task.batch("train", 1, 13, 2)
        assert torch.equal(whole.tokens_BT[3:5], part.tokens_BT)
        assert not torch.equal(whole.tokens_BT, task.batch("train", 2, 10, 8).tokens_BT)
        assert torch.equal(task.batch("test", 1, 0, 5).tokens_BT, task.batch("test", 2, 0, 5).tokens_BT)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_files_are_read_and_each_epoch_visits_every_pair_in_a_new_order(tmp_path, suffix):
    task = Pairs(files(tmp_path, suffix))
    assert [task.num_examples(split) for split in ("train", "validation", "test")] == [50, 5, 7]
    epochs = [[pair.target for pair in task.pairs("train", 0, 50 * epoch, 50)] for epoch in range(2)]
    expected = {row["target"] for row in numbered(50)}
    assert set(epochs[0]) == set(epochs[1]) == expected
    assert epochs[0] != epochs[1]
    across = task.pairs("train", 0, 45, 10)  # a batch may span epochs
    assert [pair.target for pair in across] == epochs[0][45:] + epochs[1][:5]
    assert sorted(tuple(pair) for pair in task.pairs("test", 0, 0, 7)) == [
        (row["source"], row["target"]) for row in numbered(7, "test")
    ]
    with pytest.raises(ValueError, match="has 7 pairs"):
        task.pairs("test", 0, 5, 3)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_first_held_out_pairs_are_a_sample_of_the_whole_file(tmp_path, split):
    path = write(tmp_path / "many.jsonl", numbered(400, split))
    task = Pairs(files(tmp_path, **{f"{split}_paths": [path]}))
    place = [int(pair.source.split()[1]) for pair in task.pairs(split, 0, 0, 40)]
    assert len(set(place)) == 40
    assert 140 < sum(place) / 40 < 260  # the first 40 rows have a mean of 19.5
    assert [pair.source for pair in task.pairs(split, 3, 5, 2)] == [f"{split} {i} in" for i in place[5:7]]
    assert len({pair.source for pair in task.pairs(split, 0, 0, 400)}) == 400


def test_splits_without_files_are_carved_by_row(tmp_path):
    path = write(tmp_path / "all.jsonl", numbered(300))
    task = Pairs(PairsConfig(source="files", paths=[path]))
    sizes = [task.num_examples(split) for split in ("train", "validation", "test")]
    assert sum(sizes) == 300
    assert min(sizes) > 3  # type: ignore[type-var]
    texts = [
        {p.source for p in task.pairs(split, 0, 0, n)}
        for split, n in (("train", sizes[0]), ("test", sizes[2]))
    ]
    assert not texts[0] & texts[1]


def test_nested_columns_of_a_hub_dataset(tmp_path, monkeypatch):
    """The layout of the WMT datasets, from a folder: no network is needed or used."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "wmt"
    folder.mkdir()
    for split, count in (("train", 30), ("validation", 3), ("test", 4)):
        rows = [
            {"translation": {"de": f"{split} {i} ein Hund", "en": f"{split} {i} a dog"}} for i in range(count)
        ]
        write(folder / f"{split}.parquet", rows)
    settings = {"source_column": "translation.de", "target_column": "translation.en"}
    task = Pairs(PairsConfig(source="hub", dataset=str(folder), **settings))
    assert ("test 1 ein Hund", "test 1 a dog") in task.pairs("test", 0, 0, 4)
    assert task.num_examples("train") == 30
    with pytest.raises(
        DataError, match=r"row 0, column 'translation': no column 'fr'.* Set task.target_column"
    ):
        Pairs(
            PairsConfig(source="hub", dataset=str(folder), **settings | {"target_column": "translation.fr"})
        )
    # The same from a Parquet file, which is read by column.
    same = files(
        tmp_path, paths=[str(folder / "train.parquet")], validation_paths=[], test_paths=[], **settings
    )
    assert {p.target for p in Pairs(same).pairs("train", 0, 0, 5)} <= {f"train {i} a dog" for i in range(30)}


def test_a_tokenizer_is_learned_from_both_sides_of_the_training_pairs():
    tokenizer = TokenizerConfig(kind="bpe", vocab_size=400, post_processing=[])
    task = Pairs(PairsConfig(tokenizer=tokenizer))
    pair = task.pairs("test", 0, 0, 1)[0]
    batch = task.batch("test", 0, 0, 1)
    answer = batch.tokens_BT[batch.answer_BT].tolist()
    assert answer.pop() == task.vocabulary.eos
    assert task.decode(answer) == pair.target
    for text in pair:
        assert len(task.encode(text)) < len(text.encode()) / 2
    assert task.vocabulary.num_symbols == 400


def test_fingerprints_tell_data_apart(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    prints = {
        Pairs(config).fingerprint
        for config in (
            PairsConfig(),
            PairsConfig(max_target=30),
            PairsConfig(num_sentinels=3),
            files(tmp_path),
            files(other, train=51),
        )
    }
    assert len(prints) == 5
    assert Pairs(PairsConfig()).fingerprint == Pairs(PairsConfig(metric="bleu")).fingerprint


def test_copying_the_source_is_a_reference_line(tmp_path):
    same = [
        {"source": f"the dog number {i} sleeps", "target": f"the dog number {i} sleeps"} for i in range(9)
    ]
    task = Pairs(files(tmp_path, test_paths=[write(tmp_path / "same.jsonl", same)]))
    (line,) = task.references()
    assert (line.metric, round(line.value, 6)) == ("bleu", 100)
    assert Pairs(PairsConfig()).references()[0].value < 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "blue"}, "metric='blue' is unknown; did you mean 'bleu'"),
        ({"max_target": 0}, "max_target=0 must be positive"),
        ({"tokenizer": TokenizerConfig()}, r"set it to \[\]"),
        ({"source": "phrase"}, "did you mean 'phrases'"),
        ({"num_sentinels": -1}, "num_sentinels=-1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PairsConfig(**settings)


def test_rows_that_cannot_be_read_are_named(tmp_path):
    path = write(tmp_path / "a.tsv", numbered(3))
    with pytest.raises(DataError, match=r"a.tsv, line 2: no column 'quelle'.* Set task.source_column"):
        Pairs(PairsConfig(source="files", paths=[path], source_column="quelle"))
    with pytest.raises(DataError, match=r"no pairs in the validation split .*task.validation_paths"):
        Pairs(PairsConfig(source="files", paths=[path], test_paths=[write(tmp_path / "t.tsv", numbered(4))]))
    (tmp_path / "b.csv").write_text('source,target\n"a, b",c\nd\n')
    with pytest.raises(DataError, match=r"b.csv, line 3: 1 fields under a header of 2"):
        Pairs(PairsConfig(source="files", paths=[str(tmp_path / "b.csv")]))
