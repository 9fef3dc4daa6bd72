"""Bad data ends a run before it begins: one line that names the place, exit code 3, no run folder."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hydra.core.global_hydra import GlobalHydra

from archbench.experiments.config.hydra_app import start
from archbench.experiments.data.tokenizers.tokenizer import ByteTokenizer, TokenizedText
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.recall.mqar import Recall
from archbench.experiments.tasks.task import Batch
from archbench.experiments.train import train
from tests.experiments import commands

WORDS = " ".join(f"word{i}" for i in range(400))


def texts(folder: Path, **bad: bytes) -> list[str]:
    """Overrides for text files of three splits, some of them spoilt."""
    words = ["task=text", "task.source=files", "task.sequence_length=16"]
    for split, key in (("train", "paths"), ("validation", "validation_paths"), ("test", "test_paths")):
        path = folder / f"{split}.txt"
        path.write_bytes(bad.get(split, f"{split} {WORDS}".encode()))
        words.append(f"task.{key}=[{path}]")
    return words


def rows(folder: Path, task: str, train: str, test: str) -> list[str]:
    """Overrides for JSON lines of three splits."""
    words = [f"task={task}", "task.source=files"]
    for split, key, text in (
        ("train", "paths", train),
        ("validation", "validation_paths", test),
        ("test", "test_paths", test),
    ):
        path = folder / f"{split}.jsonl"
        path.write_text(text)
        words.append(f"task.{key}=[{path}]")
    return words


def empty(folder: Path) -> tuple[list[str], str]:
    return texts(folder, test=b""), "test.txt: the file is empty"


def one_token(folder: Path) -> tuple[list[str], str]:
    return texts(folder, validation=b"x"), "the validation split has 2 tokens, fewer than sequence_length=16"


def no_utf8(folder: Path) -> tuple[list[str], str]:
    return texts(folder, train=b"good text \xff"), "train.txt: byte 10 (0xff) is not UTF-8"


def zeros(folder: Path) -> tuple[list[str], str]:
    """What a power cut leaves of the end of a file."""
    return texts(folder, test=b"good text " * 50 + bytes(400)), "test.txt: byte 500 is zero"


def overlap(folder: Path) -> tuple[list[str], str]:
    words = texts(folder)
    words[-1] = f"task.test_paths=[{folder}/../{folder.name}/train.txt]"
    return words, "in the training split and in the test split"


def overlapping_rows(folder: Path) -> tuple[list[str], str]:
    words = rows(folder, "sentences", '{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n', "")
    words[-2] = f"task.validation_paths=[{folder}/train.jsonl]"
    return [*words, "objective=sequence_classification"], "in the training split and in the validation split"


def masked_labels(folder: Path) -> tuple[list[str], str]:
    row = json.dumps({"text": "a", "label": None})
    words = rows(folder, "sentences", f"{row}\n", f"{row}\n\n")
    return [*words, "objective=sequence_classification"], "train.jsonl, line 1: column 'label' is empty"


def one_example(folder: Path) -> tuple[list[str], str]:
    row = json.dumps({"source": "a", "target": "b"})
    words = rows(folder, "pairs", f"{row}\n{row}\n", f"{row}\n")
    return [*words, "objective=seq2seq"], "task=pairs: the validation split has 1 examples: at least 2"


def blank_texts(folder: Path) -> tuple[list[str], str]:
    return texts(folder, train=b" \n\t" * 500), "only white space in the train split (documents: train 1"


def blank_rows(folder: Path) -> tuple[list[str], str]:
    blank = "".join(json.dumps({"text": " ", "label": number % 2}) + "\n" for number in range(8))
    words = rows(folder, "sentences", blank, f"{blank}\n")
    return [
        *words,
        "objective=sequence_classification",
    ], "all 8 texts of the train split are blank"


def blank_pairs(folder: Path) -> tuple[list[str], str]:
    blank = (json.dumps({"source": "a", "target": ""}) + "\n") * 4
    words = rows(folder, "pairs", blank, f"{blank}\n")
    return [*words, "objective=seq2seq"], "the target of all 4 pairs in the train split is blank"


def own_code(folder: Path) -> tuple[list[str], str]:
    """The code would leave a file behind; it must not run."""
    place = folder / "dataset"
    place.mkdir()
    (place / "dataset.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    return ["task=text", "task.source=hub", f"task.dataset={place}"], "dataset"


def missing_split(folder: Path) -> tuple[list[str], str]:
    place = folder / "dataset"
    place.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"text": [WORDS]}), place / "train.parquet")
    words = ["task=text", "task.source=hub", f"task.dataset={place}", "task.validation_split=dev"]
    return words, "no such split; there are: train"


SPOILT = (
    empty, one_token, no_utf8, zeros, overlap, overlapping_rows, masked_labels, blank_texts, blank_rows,
    blank_pairs, one_example, own_code, missing_split
)  # fmt: skip


@pytest.mark.parametrize("spoilt", SPOILT, ids=lambda spoilt: spoilt.__name__)
def test_bad_data_is_said_in_one_line_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoilt: Callable[[Path], tuple[list[str], str]],
) -> None:
    words, message = spoilt(tmp_path)
    cache = [] if "task=pairs" in words else [f"task.cache_dir={tmp_path / 'cache'}"]
    given = [*commands.TINY, *words, *cache, f"runs={tmp_path / 'runs'}"]
    GlobalHydra.instance().clear()
    monkeypatch.setattr(sys, "argv", ["train", *given])
    with pytest.raises(SystemExit) as ended:
        start(train)
    err = capsys.readouterr().err
    assert ended.value.code == 3, err
    assert message in err
    assert "\nerror: " in f"\n{err}"
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "ran").exists()


def test_ids_beyond_the_vocabulary_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a prepared file whose damage lies where opening does not look."""
    monkeypatch.setattr("archbench.experiments.data.token_file.damaged", lambda *chunks: None)
    words = [*texts(tmp_path), f"task.cache_dir={tmp_path / 'cache'}"]
    commands.task(*words)
    (path,) = (tmp_path / "cache").glob("*/train.bin")
    data = bytearray(path.read_bytes())
    data[40:42] = (999).to_bytes(2, "little")
    path.write_bytes(data)
    task = commands.task(*words)
    with pytest.raises(DataError, match=re.escape(f"{path}: token 20 is 999, the vocabulary has 288")):
        task.batch("train", 0, 0, task.num_examples("train"))


def test_a_tokenizer_that_gives_ids_beyond_its_vocabulary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ByteTokenizer,
        "encode_documents",
        lambda self, texts: [
            TokenizedText(tokens_N=np.array([65, 288]), bytes_N=np.array([1, 0]), lossless=True)
            for _ in texts
        ],
    )
    with pytest.raises(DataError, match="train split, after token 0: the tokenizer gives the id 288"):
        commands.task(*texts(tmp_path), f"task.cache_dir={tmp_path / 'cache'}")
    assert not list((tmp_path / "cache").glob("*"))


def test_answers_that_are_all_hidden_are_noticed_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Recall.batch

    def without_answers(self: Recall, *place: int) -> Batch:
        batch = whole(self, *place)
        return replace(batch, answer_BT=batch.answer_BT & False)

    monkeypatch.setattr(Recall, "batch", without_answers)
    with pytest.raises(DataError, match="task=recall: nothing is scored in the first 64 training examples"):
        commands.train(*commands.RECALL, *commands.TINY, f"runs={tmp_path / 'runs'}")
    assert not (tmp_path / "runs").exists()
