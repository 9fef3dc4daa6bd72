"""A folder of frames is described as a dataset."""

import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest
from datasets import load_dataset

from archbench.analysis.dataset import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frame = pd.DataFrame({"study": ["a", "a"], "seed": [0, 1], "score": [0.5, None], "message": [None, None]})
    frame.to_parquet(tmp_path / "mine.parquet", index=False)
    frame.head(1).to_parquet(tmp_path / "other.parquet", index=False)
    return tmp_path


def test_frames_are_read_by_datasets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    assert main([f"folder={folder}"]) == 0
    read = load_dataset(str(folder), "mine", split="train", cache_dir=str(folder / "cache")).to_pandas()
    assert read["seed"].tolist() == [0, 1]
    assert len(load_dataset(str(folder), "other", split="train", cache_dir=str(folder / "cache"))) == 1


def test_croissant_has_the_hash_and_the_columns_of_each_frame(folder: Path) -> None:
    assert main([f"folder={folder}"]) == 0
    metadata = json.loads((folder / "croissant.json").read_text())
    file = metadata["distribution"][0]
    assert file["sha256"] == hashlib.sha256((folder / file["contentUrl"]).read_bytes()).hexdigest()
    mine, other = metadata["recordSet"]
    assert (mine["name"], other["name"]) == ("mine", "other")
    fields = {field["name"]: field for field in mine["field"]}
    assert {name: field["dataType"] for name, field in fields.items()} == {
        "study": "sc:Text", "seed": "sc:Integer", "score": "sc:Float",
    }  # fmt: skip
    assert fields["study"]["description"] == "Name of the study."
    assert fields["study"]["source"] == {
        "fileObject": {"@id": "mine.parquet"}, "extract": {"column": "study"},
    }  # fmt: skip


def test_mlcroissant_validates_the_metadata_and_reads_frames(folder: Path) -> None:
    """It is not installed with ``[dev]``: it brings type stubs of pandas, which mypy would use."""
    mlcroissant = pytest.importorskip("mlcroissant", reason="needs mlcroissant: make test-dataset")
    assert main([f"folder={folder}"]) == 0
    dataset = mlcroissant.Dataset(folder / "croissant.json")
    assert [record["mine/seed"] for record in dataset.records("mine")] == [0, 1]
    assert not dataset.metadata.ctx.issues.errors
    (folder / "mine.parquet").write_bytes((folder / "other.parquet").read_bytes())
    with pytest.raises(Exception, match="mine"):
        list(mlcroissant.Dataset(folder / "croissant.json").records("mine"))


def test_a_folder_without_frames_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"folder={tmp_path}"]) == 3
    assert "has no Parquet files" in capsys.readouterr().err
    (tmp_path / "broken.parquet").write_text("no")
    assert main([f"folder={tmp_path}"]) == 3
    assert "broken.parquet is not a Parquet file" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.parquet"]
