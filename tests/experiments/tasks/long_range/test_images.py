import io

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.long_range.images import Images, ImagesConfig


@pytest.fixture(scope="module")
def digits():
    return Images(ImagesConfig())


def test_the_digits_are_scikit_learns_each_in_one_split(digits):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    expected = sorted((*map(int, image), 17 + label) for image, label in zip(images, labels, strict=True))
    found = []
    for split, size in (("train", 1197), ("validation", 300), ("test", 300)):
        assert digits.num_examples(split) == size
        found += [tuple(row) for row in digits.batch(split, 0, 0, size).tokens_BT.tolist()]
    assert sorted(found) == expected
    assert digits.sequence_length == 65
    assert digits.vocabulary.num_symbols == 27
    assert list(digits.labels) == list(range(17, 27))


def test_the_answer_stands_last_and_is_not_shown(digits):
    batch = digits.batch("test", 5, 0, 30)
    assert batch.answer_BT[:, -1].all()
    assert batch.answer_BT.sum() == 30
    assert (batch.context_BT[:, -1] == 0).all()
    assert torch.equal(batch.context_BT[:, :-1], batch.tokens_BT[:, :-1])
    assert torch.equal(batch.tokens_BT, digits.batch("test", 6, 0, 30).tokens_BT)
    with pytest.raises(ValueError, match="the test split has 300 images"):
        digits.batch("test", 0, 290, 11)


def test_training_visits_all_images_in_a_new_order_each_epoch(digits):
    epochs = [digits.batch("train", 2, epoch * 1197, 1197).tokens_BT.tolist() for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])
    across = digits.batch("train", 2, 1190, 20).tokens_BT.tolist()
    assert across == epochs[0][1190:] + epochs[1][:13]
    assert digits.batch("train", 3, 0, 1197).tokens_BT.tolist() != epochs[0]


def test_permuted_pixels_are_the_same_pixels_in_one_order(digits):
    permuted = Images(ImagesConfig(permuted=True))
    plain, other = (task.batch("test", 0, 0, 40).tokens_BT[:, :-1] for task in (digits, permuted))
    assert not torch.equal(plain, other)
    assert torch.equal(plain.sort(1).values, other.sort(1).values)
    order = [next(p for p in range(64) if torch.equal(plain[:, p], other[:, q])) for q in range(64)]
    assert len({tuple(plain[:, p].tolist()) for p in order}) == len({tuple(c) for c in plain.T.tolist()})
    assert permuted.fingerprint != digits.fingerprint


def test_shallow_solvers_are_measured(digits):
    found = {reference.name: reference.value for reference in digits.references()}
    labels = digits.batch("test", 0, 0, 300).tokens_BT[:, -1]
    assert max((labels == label).float().mean() for label in digits.labels) >= found["majority"] > 0.05
    assert 0.85 < found["nearest mean"] < 1


def png(array):
    data = io.BytesIO()
    Image.fromarray(array).save(data, format="PNG")
    return data.getvalue()


def write(path, images, labels):
    rows = [
        {"image": {"bytes": data, "path": None}, "label": x} for data, x in zip(images, labels, strict=True)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([np.zeros((3, 3)), np.zeros((3, 4))], [0, 1], "train.parquet, row 1: 3 by 4 pixels, the first"),
        ([np.zeros((3, 3)), b"no image"], [0, 1], "train.parquet, row 1: column 'image' holds bytes that"),
        (
            [np.zeros((3, 3)), np.zeros((3, 3))],
            [0, 1],
            "the validation split has the class '2', which the training",
        ),
    ],
)
def test_images_that_cannot_be_used_are_named(tmp_path, images, labels, message):
    data = [image if isinstance(image, bytes) else png(image.astype(np.uint8)) for image in images]
    write(tmp_path / "train.parquet", data, labels)
    write(tmp_path / "test.parquet", [png(np.zeros((3, 3), dtype=np.uint8))], [2])
    paths = {"train": "train", "validation": "test", "test": "test"}
    paths = {split: [str(tmp_path / f"{name}.parquet")] for split, name in paths.items()}
    with pytest.raises(DataError, match=message):
        Images(
            ImagesConfig(
                source="files",
                paths=paths["train"],
                validation_paths=paths["validation"],
                test_paths=paths["test"],
            )
        )
