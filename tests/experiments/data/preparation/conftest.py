"""A dataset of the hub as a local folder, with more row groups than files."""

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from archbench.experiments.data.corpus import CorpusConfig
from tests.experiments.data.hub_folder import new_folder

ROWS = 240
"""Of the training split; an eleventh of them is empty, another white space."""


def texts(name: str, count: int) -> list[str]:
    special = {3: "", 7: " \n"}
    return [special.get(i % 11, f"row {i} of {name}: " + f"é{i} " * (i % 13)) for i in range(count)]


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three training files of ten row groups in all, and a test split; caches stay in ``tmp_path``."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folder = new_folder(tmp_path, monkeypatch)
    train = texts("train", ROWS)
    for number, (begin, end) in enumerate([(0, 100), (100, 110), (110, ROWS)]):
        write(folder, f"train-{number:05}-of-00003", train[begin:end], row_group=25 if number else 34)
    write(folder, "test-00000-of-00001", texts("test", 30), row_group=12)
    return folder


def write(folder: Path, name: str, rows: list[str], row_group: int) -> None:
    table = pyarrow.table({"body": rows, "score": list(range(len(rows)))})
    pyarrow.parquet.write_table(table, folder / "data" / f"{name}.parquet", row_group_size=row_group)


def corpus(folder: Path, **changes: object) -> CorpusConfig:
    settings = {"dataset": str(folder), "column": "body", "validation_split": None, "streaming": True}
    return CorpusConfig(source="hub", **(settings | changes))
