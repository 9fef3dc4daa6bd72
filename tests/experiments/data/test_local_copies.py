"""The presets of published data, pointed at small local copies in the same layout: no network."""

import io
from pathlib import Path

import datasets
import huggingface_hub.constants
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from archbench.experiments.tasks.long_range.images import Images
from archbench.experiments.tasks.text.sequence_classification import Sentences
from archbench.experiments.tasks.text.text import Text
from tests.experiments import commands


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


TEXTS = {
    "wikitext_2": ("wikitext-2-raw-v1", ("train", "validation", "test")),
    "wikitext_103": ("wikitext-103-raw-v1", ("train", "validation", "test")),
    "lm1b": (None, ("train", "test")),
    "openwebtext": (None, ("train",)),
    "fineweb_edu": ("sample-10BT", ("train",)),
    "c4": ("en", ("train", "validation")),
    "slimpajama": (None, ("train", "validation", "test")),
}
"""Configuration and splits of each dataset on the hub; all have their text in the column ``text``."""


def hub_folder(folder: Path, config: str | None, tables: dict[str, pyarrow.Table]) -> Path:
    """A dataset in the hub's layout: a README that names the files, and a Parquet file for each split."""
    name = config or "default"
    (folder / name).mkdir(parents=True)
    lines = ["---", "configs:", f"- config_name: {name}", "  data_files:"]
    for split, table in tables.items():
        pyarrow.parquet.write_table(table, folder / name / f"{split}-00000-of-00001.parquet")
        lines += [f"  - split: {split}", f"    path: {name}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


@pytest.mark.parametrize("preset", TEXTS)
def test_corpora_are_read_split_by_split(tmp_path: Path, preset: str) -> None:
    config, splits = TEXTS[preset]
    texts = {split: [f"line {i} of {split} = <unk> \n" for i in range(120)] for split in splits}
    tables = {split: pyarrow.table({"text": texts[split], "other": range(120)}) for split in splits}
    folder = hub_folder(tmp_path / preset, config, tables)
    task = commands.task(
        *(f"task={preset}", f"task.dataset={folder}", f"task.cache_dir={tmp_path / 'cache'}"),
        "task.sequence_length=16",
    )
    assert isinstance(task, Text)
    found = {split: task.decode(task._file.tokens[split]) for split in ("train", "validation", "test")}
    named = {"train": "train", "validation": "validation", "test": "test"}
    if preset == "c4":
        named = {"train": "train", "test": "validation"}  # published numbers are of its validation split
    for split, source in named.items():
        if source in splits and split != "train":
            assert found[split] == "".join(texts[source])
    assert found["train"].count("of train") >= 100
    held_out = [split for split in ("validation", "test") if named.get(split) not in splits]
    lines = set(found["train"].splitlines())
    for split in held_out:  # carved from the training split, none of it left there
        assert found[split]
        assert not lines & set(found[split].splitlines())
    if preset.startswith("wikitext"):
        num_bytes = len("".join(texts["test"]).encode())
        assert task.words_per_byte("test") == pytest.approx(245_569 / num_bytes)


@pytest.mark.parametrize("preset", ["enwik8", "text8"])
def test_files_cut_as_published_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / preset
    folder.mkdir(parents=True)
    whole = "anarchism originated as a term of abuse " * 50
    parts = {"train": whole[:1800], "validation": whole[1800:1900], "test": whole[1900:2000]}
    for split, part in parts.items():
        (folder / f"{split}.txt").write_text(part)
    task = commands.task(f"task={preset}", "task.sequence_length=16")
    assert isinstance(task, Text)
    assert {split: task.decode(task._file.tokens[split]) for split in parts} == parts
    assert task.words_per_byte("train") == len(parts["train"].split()) / 1800


def test_reviews_are_classified_by_their_bytes(tmp_path: Path) -> None:
    """The layout of IMDB: named classes, sorted by class, and a split without labels that nobody reads."""
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    tables = {}
    for split, label in (("train", None), ("test", None), ("unsupervised", -1)):
        labels = [int(i >= 60) if label is None else label for i in range(120)]
        rows = {"text": [f"{split} review {i} <br />" for i in range(120)], "label": labels}
        tables[split] = pyarrow.table(rows, schema=features.arrow_schema)
    folder = hub_folder(tmp_path / "imdb", "plain_text", tables)
    task = commands.task("task=imdb", "objective=sequence_classification", f"task.dataset={folder}")
    assert isinstance(task, Sentences)
    assert task.classes == ["neg", "pos"]
    assert task.num_examples("test") == 120
    assert task.num_examples("train") + task.num_examples("validation") == 120
    batch = task.batch("test", 0, 0, 120)
    assert batch.tokens_BT.shape == (120, 4096)
    assert batch.label_B is not None
    for row, label in zip(batch.tokens_BT[:20], batch.label_B.tolist(), strict=False):
        number = int(task.tokenizer.decode(row).split()[2])
        assert label == (number >= 60)


def test_papers_are_compared_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of AAN in Long Range Arena: tab-separated, two papers with their numbers, a label."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "aan"
    folder.mkdir(parents=True)
    for split in ("train", "eval", "test"):
        rows = [f'{i % 2}\t{i}\t{i + 1}\t{f"the {split} " * 900}"\tanother\n' for i in range(8)]
        text = "label\tpaper1\tpaper2\ttext1\ttext2\n" + "".join(rows)
        (folder / f"new_aan_pairs.{split}.tsv").write_text(text)
    task = commands.task("task=aan", "objective=sequence_classification")
    assert isinstance(task, Sentences)
    assert [task.num_examples(split) for split in ("train", "validation", "test")] == [8, 8, 8]
    batch = task.batch("test", 0, 0, 8)
    assert batch.segments_BT is not None
    assert batch.valid_BT.sum(1).max() == 8003  # the long paper is cut, the short one is not
    for row, segments in zip(batch.tokens_BT, batch.segments_BT, strict=True):
        assert task.tokenizer.decode(row[segments == 1]) == "another"


LAYOUTS = {
    "mnist": ("image", [str(i) for i in range(3)], (5, 4)),
    "cifar10": ("img", ["airplane", "automobile", "bird"], (4, 4, 3)),
}
"""Column of the image, names of the classes, shape: in small, as in the datasets on the hub."""


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, dict[str, np.ndarray]]:
    """A dataset of 200 training and 20 test images in Parquet files whose schema is that of ``datasets``."""
    column, names, shape = LAYOUTS[request.param]
    features = datasets.Features({column: datasets.Image(), "label": datasets.ClassLabel(names=names)})
    images, random = {}, np.random.default_rng(0)
    (tmp_path / "set" / "plain_text").mkdir(parents=True)
    for split, count in (("train", 200), ("test", 20)):
        images[split] = random.integers(0, 256, (count, *shape), dtype=np.uint8)
        rows = {
            column: [{"bytes": png(image), "path": None} for image in images[split]],
            "label": [i % 3 for i in range(count)],
        }
        table = pyarrow.Table.from_pydict(rows, schema=features.arrow_schema)
        pyarrow.parquet.write_table(
            table, tmp_path / "set" / "plain_text" / f"{split}-00000-of-00001.parquet"
        )
    return request.param, tmp_path / "set", images


def png(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(array).save(data, format="PNG")
    return data.getvalue()


def test_images_are_read(layout: tuple[str, Path, dict[str, np.ndarray]]) -> None:
    """The presets of conf/task, pointed at a small copy in the same layout."""
    name, folder, images = layout
    task = commands.task(f"task={name}", f"task.dataset={folder}", "objective=classification")
    assert isinstance(task, Images)
    assert task.classes == LAYOUTS[name][1]
    assert task.num_examples("test") == 20
    assert task.num_examples("train") + task.num_examples("validation") == 200
    assert task.num_examples("validation") > 0
    assert task.vocabulary.num_symbols == 256 + 3
    expected = images["test"].astype(float)
    if expected.ndim == 4:
        expected = expected @ np.array([0.299, 0.587, 0.114])
    expected = {tuple(np.rint(image.ravel()).astype(int)): 256 + i % 3 for i, image in enumerate(expected)}
    for row in task.batch("test", 0, 0, 20).tokens_BT.tolist():
        nearest = min(
            expected, key=lambda image: max(abs(a - b) for a, b in zip(image, row[:-1], strict=True))
        )
        assert max(abs(a - b) for a, b in zip(nearest, row[:-1], strict=True)) <= 1  # of rounding
        assert expected[nearest] == row[-1]
