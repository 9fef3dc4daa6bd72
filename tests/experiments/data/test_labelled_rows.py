"""Rows of files and of a folder in the hub's layout; no network is needed or used."""

import json

import datasets
import huggingface_hub.constants
import pyarrow
import pyarrow.parquet
import pytest

from archbench.experiments.data.labelled_rows import Row, RowsConfig, read_rows, value_in
from archbench.experiments.runtime.errors import DataError

COLUMNS = ["text", "label"]
ROWS = [{"text": f"said “{i}”, twice", "label": f"{i % 3}", "more": "x"} for i in range(400)]


def write(path, rows=ROWS):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        lines = ["text,label,more", *('"{text}",{label},{more}'.format(**row) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        lines = ["text\tlabel\tmore", *("{text}\t{label}\t{more}".format(**row) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    return str(path)


def found(columns=COLUMNS, **settings):
    return [
        (split, {name: row.values[name] for name in columns})
        for split, row in read_rows(RowsConfig(**settings), columns)
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, suffix):
    path = write(tmp_path / f"rows.{suffix}")
    rows = [values for _, values in found(source="files", paths=[path])]
    assert rows == [{name: row[name] for name in COLUMNS} for row in ROWS]


def test_splits_are_carved_by_row_or_named(tmp_path):
    path = write(tmp_path / "all.jsonl")
    carved = found(source="files", paths=[path])
    counts = {name: sum(split == name for split, _ in carved) for name in ("train", "validation", "test")}
    assert sum(counts.values()) == 400
    assert 5 <= counts["validation"] <= 40
    assert 5 <= counts["test"] <= 40
    assert carved == found(source="files", paths=[path])

    other = write(tmp_path / "test.tsv", ROWS[:7])
    named = found(source="files", paths=[path], test_paths=[other])
    assert sum(split == "test" for split, _ in named) == 7
    assert [split for split, _ in named if split != "train"][-7:] == ["test"] * 7
    assert {split for split, _ in named} == {"train", "validation", "test"}
    few = found(source="files", paths=[path], test_paths=[other], max_rows=5)
    assert len(few) == 10


def test_conll_files_are_sentences(tmp_path):
    path = tmp_path / "ner.conll"
    path.write_text(
        "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nPeter NNP B-PER\nBlackburn NNP I-PER\n"
    )
    rows = [row for _, row in read_rows(RowsConfig(source="files", paths=[str(path)]), [])]
    assert [row.values for row in rows] == [
        {"tokens": ("EU", "rejects"), "tags": ("B-ORG", "O")},
        {"tokens": ("Peter", "Blackburn"), "tags": ("B-PER", "I-PER")},
    ]
    assert rows[1].location.endswith("ner.conll, line 7")
    path.write_text("EU B-ORG\nrejects\n")
    with pytest.raises(DataError, match="line 2: not a word and its tag"):
        list(read_rows(RowsConfig(source="files", paths=[str(path)]), []))


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset whose classes and tags are numbers with names; one label of the test split is hidden."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "some-dataset"
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "tags": datasets.List(datasets.ClassLabel(names=["O", "B-PER", "I-PER"])),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    for split, labels in {"train": [0, 1, 1], "test": [1, -1]}.items():
        rows = [{"tokens": ["Ada", "sat"], "tags": [1, 0], "label": label} for label in labels]
        (folder / "data").mkdir(parents=True, exist_ok=True)
        table = datasets.Dataset.from_list(rows, features=features)
        table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return str(folder)


def test_classes_of_the_hub_are_given_by_name(dataset):
    config = RowsConfig(source="hub", dataset=dataset, validation_split="test")
    rows = list(read_rows(config, []))
    assert [split for split, _ in rows] == ["train"] * 3 + ["validation"] * 2 + ["test"] * 2
    assert [row.values["label"] for _, row in rows[:4]] == ["no", "yes", "yes", "yes"]
    assert rows[0][1].values["tags"] == ["B-PER", "O"]
    hidden = rows[-1][1]
    assert hidden.values["label"] is None
    with pytest.raises(DataError, match=r"column 'label' is empty.*use a split with labels"):
        value_in(hidden, "label", "label_column")
    with pytest.raises(DataError, match=r"no column 'labell'; did you mean 'label'\? Set task.label_column"):
        value_in(hidden, "labell", "label_column")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,label\nx,y,z\n", r"rows.csv, line 2: 3 fields"),
        ("text,label\nx\n", r"rows.csv, line 2"),
    ],
)
def test_broken_rows_are_named(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        found(source="files", paths=[str(path)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "file", "paths": ["x"]}, "source='file' is unknown; did you mean 'files'"),
        ({"source": "files"}, "needs paths"),
        ({"source": "hub"}, "needs a dataset"),
        ({"source": "hub", "dataset": "x", "paths": ["y"]}, "source=hub with paths"),
        ({"source": "files", "paths": ["x"], "dataset": "y"}, "source=files with dataset"),
        ({"source": "hub", "dataset": "x", "test_paths": ["y"]}, "reads no paths"),
        ({"source": "files", "paths": ["x"], "max_rows": 0}, "max_rows=0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RowsConfig(**settings)


def conll(tmp_path, text):
    """Words and tags of the sentences of a .conll file."""
    path = tmp_path / "rows.conll"
    path.write_bytes(text.encode())
    rows = found(("tokens", "tags"), source="files", paths=[str(path)])
    return [list(zip(row["tokens"], row["tags"], strict=True)) for _, row in rows]


@pytest.mark.parametrize(
    "word",
    [
        "12\u00a0500",
        "New York",
        "a\u2028b",
        "a\u0085b",
        "a\x0bb",
        "a\x0cb",
        "a\rb",
        "\u3000",
        " ",
        "a ",
        "\x1c",
        "#",
        "#5",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_words_keep_their_white_space(tmp_path, word, end):
    lines = ["Paid\tX\tO", f"{word}\tX\tB-NUM", "", "now\tX\tO"]
    assert conll(tmp_path, end.join(lines)) == [[("Paid", "O"), (word, "B-NUM")], [("now", "O")]]
    if " " not in word and word.strip():
        spaced = end.join(lines).replace("\t", "  ") + end
        assert conll(tmp_path, spaced) == [[("Paid", "O"), (word, "B-NUM")], [("now", "O")]]


@pytest.mark.parametrize("text", ["1 O\n\n1 O\n", "1 O\n2 O\n\na O\n", "1 O\n3 O\n", "2 O\n3 O\n", "1-2 O\n"])
def test_words_that_are_numbers_are_read(tmp_path, text):
    assert conll(tmp_path, text) == [
        [tuple(line.split()) for line in sentence.splitlines()] for sentence in text.split("\n\n")
    ]


@pytest.mark.parametrize("gap", ["\t", " "])
def test_comments_are_skipped_and_words_that_begin_with_a_hash_are_not(tmp_path, gap):
    text = "\ufeff# id = 1\n# text = a O b\n#note\na_O\n#_B-X\n\n# newdoc\n-DOCSTART-_O\n\n#tag_O\nb_O\n"
    sentences = conll(tmp_path, text.replace("_", gap))
    assert sentences == [[("a", "O"), ("#", "B-X")], [("#tag", "O"), ("b", "O")]]
    assert conll(tmp_path, "# newdoc\na\tNOUN\n#\tSYM\n") == [[("a", "NOUN"), ("#", "SYM")]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tO\rb\tO\r", "lines end at CR"),
        ("\tO\n", "line 1: not a word"),
        ("New York\t\n", "line 1: not a word"),
        ("a O\nNew York B-X\n", "line 2: 3 columns, the first word has 2.*separate columns by tabs"),
        ("a NOUN\n# SYM\n", "line 2: a comment, or a word"),
        ("a O\r\r\nb B-PER\r\r\n", r"rows.conll, line 1: the tag 'O\\r' has white space or a control"),
        ("a O\nb B-PER\u00a0\n", r"line 2: the tag 'B-PER\\xa0' has"),
        ("a O\nb B-\u200bPER\n", r"line 2: the tag 'B-\\u200bPER' has"),
        ("Anna \t B-PER\n", "line 1: the tag ' B-PER' has"),
        ("Anna\tB PER\n", "line 1: the tag 'B PER' has"),
        ("a\tO\x1f\n", r"line 1: the tag 'O\\x1f' has"),
        ("# text = Vom Ort\n1-2\tVom\t_\n1\tVon\tO\n2\tdem\tO\n\n1\tOrt\tO\n", "as in CoNLL-U.*cut -f2,4"),
        ("1 a O\n2 b O\n2.1 c O\n3 d O\n", "first column counts the words"),
        ("-DOCSTART- O\n\n0 a O\n1 b O\n", "first column counts the words"),
    ],
)
def test_lines_that_are_no_word_and_tag_are_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        conll(tmp_path, text)


@pytest.mark.parametrize("value", ["a\ud800b", ["EU", "\udfff"]])
def test_half_a_surrogate_pair_is_named_with_its_row(value):
    with pytest.raises(DataError, match="line 3: column 'words' has half a surrogate pair"):
        value_in(Row("rows.jsonl, line 3", {"words": value}), "words", "words_column")
    assert value_in(Row("rows.jsonl, line 3", {"words": "\U0001f600 \ue000"}), "words", "words_column")
