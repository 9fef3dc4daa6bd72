"""F54: random files, words, scripts and texts are sampled, counted and scored as they are."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.objectives.fine_tuning.token_classification import (
    TaggedPiece,
    TokenClassification,
    TokenClassificationConfig,
    joined_sentences,
)
from archbench.experiments.tasks.text.sequence_classification import Sentences, SentencesConfig
from archbench.experiments.tasks.text.text_pairs import Pairs, PairsConfig
from archbench.experiments.tasks.text.token_classification import Tags, TagsConfig
from tests.experiments.data.tokenizers.test_folder_tokenizer import word_piece
from tests.faults.children import seeds

SIGMAS = 5.5
"""Standard errors within which means of samples are: one of 30 million is outside."""


def write_rows(path: Path, rows: list[dict[str, str]]) -> str:
    """Write rows of strings in the format that the suffix names."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, [*rows[0]], delimiter="," if path.suffix == ".csv" else "\t")
            table.writeheader()
            table.writerows(rows)
    return str(path)


def check_sample(places: list[int], size: int, about: str) -> None:
    """Assert that places of 0 to size - 1 are different, and spread as a sample of them is."""
    count = len(places)
    assert len(set(places)) == count, f"{about}: a row twice"
    rest = math.sqrt((size - count) / (size - 1))
    error = size / math.sqrt(12 * count) * rest
    assert abs(sum(places) / count - (size - 1) / 2) < SIGMAS * error + 1, (
        f"{about}: mean {sum(places) / count}"
    )
    for part in range(4):  # no quarter of the file is left out
        share = sum(part * size <= 4 * place < (part + 1) * size for place in places)
        assert abs(share - count / 4) < SIGMAS * math.sqrt(count * 3 / 16) * rest + 2, (
            f"{about}: {part} {share}"
        )


@pytest.mark.full
@seeds(3, recorded=60)
def test_f54_examples_are_a_sample_of_the_whole_file(seed: int, tmp_path: Path, record: Any) -> None:
    rng = random.Random(seed)
    suffix, is_pairs = rng.choice((".json", ".jsonl", ".csv", ".tsv", ".parquet")), rng.random() < 0.5
    size, held_out = rng.randint(200, 700), rng.choice(("validation", "test"))
    names = ("source", "target") if is_pairs else ("text", "label")
    rows = [dict(zip(names, (f"row {i}", str(2 * i // size)), strict=True)) for i in range(size)]
    paths = {
        f"{prefix}paths": [write_rows(tmp_path / f"{split}{suffix}", rows + [rows[0]] * (split == "train"))]
        for split, prefix in (("train", ""), ("validation", "validation_"), ("test", "test_"))
    }
    paths[f"{'validation' if held_out == 'test' else 'test'}_paths"] = paths[f"{held_out}_paths"]
    count = rng.randint(30, size // 2)
    about = f"seed {seed}: {count} of {size} rows of {suffix}, {'pairs' if is_pairs else 'sentences'}"
    pairs = Pairs(PairsConfig(source="files", **paths)) if is_pairs else None  # type: ignore[arg-type]
    task = pairs or Sentences(SentencesConfig(source="files", **paths))  # type: ignore[arg-type]

    def drawn(split: str, of_seed: int) -> list[int]:
        if pairs:
            return [int(pair.source.split()[1]) for pair in pairs.pairs(split, of_seed, 0, count)]
        tokens_BT = task.batch(split, of_seed, 0, count).tokens_BT.tolist()
        return [int(bytes(token for token in row if token < 256).split()[1]) for row in tokens_BT]

    check_sample(drawn(held_out, 0), size, f"{about}, {held_out}")
    assert drawn(held_out, 0) == drawn(held_out, seed), about
    train = [drawn("train", of_seed) for of_seed in (seed, seed + 1)]
    for places in train:
        check_sample([*dict.fromkeys(places)], size, f"{about}, train")
    assert train[0] != train[1], f"{about}: the same order for two seeds"
    record("F54", "samples of sorted files in random formats", 1, "rows of the whole file")


LETTERS = [
    "a",
    "Ab",
    "cat",
    "the",
    "é",
    "e\u0301",
    "ß",
    "д",
    "猫",
    "ไ",
    "n\u0303o",
    "क\u094d",
    "💡",
    "x-1",
    ".",
    "#1",
    "B-PER",
    "O",
]
STRANGE = [
    "\u200b", "\u00ad", "\ufeff", "\u200d", "\u2060", "\u200e", "\ufe0f", "\u034f", "\u0301", "\u20dd",
    "\u00a0", "\u3000", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1f", "\u1680", "\u180e", 
    "\u202f", "\U000e0001",
]  # fmt: skip
"""Characters that are invisible, combine with others, or count as white space or ends of lines in Python."""


def random_sentence(rng: random.Random) -> list[tuple[str, str]]:
    """Return words and tags of a sentence by IOB2."""
    words: list[tuple[str, str]] = []
    while len(words) < rng.choice((1, 3, 10, 60)):
        kind, entity = rng.choice(("PER", "LOC")), rng.random() < 0.5
        for place in range(rng.randint(1, 5)):
            parts = rng.choices([*LETTERS, *STRANGE], k=rng.randint(1, 3)) if rng.random() < 0.5 else []
            word = "".join(parts) if "".join(parts).strip(" ") else rng.choice(LETTERS)
            words.append((word, f"{'I' if place else 'B'}-{kind}" if entity else "O"))
    return words


def conll(rng: random.Random, sentences: list[list[tuple[str, str]]]) -> bytes:
    """Return sentences as a file, with a random separator, end of lines and number of columns."""
    mark, end = rng.choice(("\t", "\t", " ")), rng.choice(("\n", "\r\n"))
    middle = [mark] if rng.random() < 0.5 else [f"{mark}NN{mark}"]
    lines = [f"{word}{middle[0]}{tag}" for words in sentences for word, tag in [*words, ("", "")]]
    text = end.join("" if line.strip(" \tN") == "" else line for line in lines)
    # A byte-order mark at the start is no part of the first word, but a second one is.
    return ("\ufeff" * text.startswith("\ufeff") + text).encode()


def gold_entities(sentences: list[list[tuple[str, str]]]) -> int:
    return sum(tag.startswith("B-") for words in sentences for _, tag in words)


@pytest.mark.full
@seeds(3, recorded=60)
def test_f54_words_and_entities_of_a_file_are_those_that_are_scored(
    seed: int, tmp_path: Path, record: Any
) -> None:
    rng = random.Random(seed)
    parts = {split: [random_sentence(rng) for _ in range(rng.randint(4, 12))] for split in ("train", "test")}
    parts["train"].append([("the", "O"), ("cat", "B-PER"), ("sat", "I-PER"), ("a", "B-LOC"), ("a", "I-LOC")])
    for split, sentences in parts.items():
        (tmp_path / f"{split}.conll").write_bytes(conll(rng, sentences))
    paths = {key: [str(tmp_path / f"{split}.conll")] for key, split in (
        ("paths", "train"), ("validation_paths", "test"), ("test_paths", "test"),
    )}  # fmt: skip
    folder = rng.random() < 0.5
    tokenizer = TokenizerConfig(kind="folder", path=str(word_piece(tmp_path / "bert")), post_processing=[])
    length = rng.choice((16, 24, 64))
    settings = {"source": "files", "sequence_length": length, **paths} | (
        {"tokenizer": tokenizer} if folder else {}
    )
    about = f"seed {seed}: {'word pieces' if folder else 'bytes'}, length {length}"
    task = Tags(TagsConfig(**settings))
    assert [list(row.texts) for row in task.parsed["test"]] == [[w for w, _ in ws] for ws in parts["test"]], (
        about
    )
    batch = task.batch("test", 0, 0, task.num_examples("test") or 0)
    objective = TokenClassification(TokenClassificationConfig(), task)
    assert batch.words is not None
    pieces = [TaggedPiece(words.sentence, words.begin, words.tags, words.tags) for words in batch.words]
    rng.shuffle(pieces)
    assert sum(len(piece.tags) for piece in pieces) == sum(map(len, parts["test"])), about
    counts_N5 = [objective._counts(*each) for each in joined_sentences(pieces)]
    assert sum(row[2] for row in counts_N5) == gold_entities(parts["test"]), about
    for row, (words, tag_T) in enumerate(zip(batch.words, batch.tag_BT.tolist(), strict=True)):  # type: ignore[union-attr]
        seen = [(at, tag) for at, tag in zip(words.positions, words.tags, strict=True) if at is not None]
        assert [(at, tag_T[at]) for at, _ in seen] == seen, f"{about}, piece {row}"
        assert int(batch.answer_BT[row].sum()) == len(seen), f"{about}, piece {row}"
    record(
        "F54",
        "files of tagged words with invisible, empty and combining characters",
        1,
        "all words and entities",
    )
