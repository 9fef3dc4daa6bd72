"""Sequential images: the class of a picture that is read pixel by pixel, row by row.

The default is the 1,797 handwritten digits of 8 by 8 pixels that ship with scikit-learn (Alpaydin and
Kaynak 1998, UCI): no network. Any dataset of images in the hub's layout can replace them, such as MNIST
(Le, Jaitly and Hinton 2015, arXiv 1504.00941, permuted or not) and CIFAR-10 in grey (Long Range Arena, Tay
et al. 2020, arXiv 2011.04006). A token is a pixel's brightness, an integer, which
``objective.real_values`` converts to a real input. The answer is the last token.

Shapes: B examples, T tokens, N images of a split, P pixels.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from archbench.experiments.data.corpus import SPLITS
from archbench.experiments.data.counter_rng import epoch_order, permute
from archbench.experiments.data.labelled_rows import Row, RowsConfig, read_rows, value_in
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import batch_of
from archbench.experiments.tasks.task import Batch, Task

_HELD_OUT = 300
"""Digits in each of the validation and test splits."""
_DIGIT_LEVELS, _LEVELS = 17, 256


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(RowsConfig):
    """The source of the images, and the order of their pixels."""

    made: ClassVar[str] = "digits"

    source: str = "digits"
    """``digits`` (scikit-learn's), ``hub`` or ``files`` (Parquet in the hub's layout)."""
    image_column: str = "image"
    """The column of the image."""
    label_column: str = "label"
    """The column of the class."""
    permuted: bool = False
    """Pixels in an order drawn once, the same for all images and seeds; else row by row."""


class Images(Task):
    """Images as sequences of brightness. Building the task reads every image."""

    Config = ImagesConfig
    metric = "answer_accuracy"
    has_labels = True

    def __init__(self, config: ImagesConfig) -> None:
        self.config = config
        self.levels = _DIGIT_LEVELS if config.source == config.made else _LEVELS
        images: dict[str, list[NDArray[np.uint8]]] = {split: [] for split in SPLITS}
        names: dict[str, list[str]] = {split: [] for split in SPLITS}
        shape: tuple[int, ...] | None = None
        columns = [config.image_column, config.label_column]
        for split, row in _digits(config) if config.source == config.made else read_rows(config, columns):
            image_HW = _grey(row, config.image_column)
            shape = shape or image_HW.shape
            if image_HW.shape != shape:
                raise DataError(
                    f"{row.location}: {image_HW.shape[0]} by {image_HW.shape[1]} pixels, the first image has "
                    f"{shape[0]} by {shape[1]}: bring all images to one size"
                )
            images[split].append(image_HW.ravel())
            names[split].append(str(value_in(row, config.label_column, "label_column")))
        for split, split_images in images.items():
            if not split_images:
                raise DataError(
                    f"source={config.source}: no images in the {split} split: give more, or name the splits "
                    "(task.validation_split, task.test_split)"
                )
        self.classes = sorted(set(names["train"]))
        for split in SPLITS:
            for name in names[split]:
                if name not in self.classes:
                    raise DataError(
                        f"the {split} split has the class '{name}', which the training split lacks"
                        f"{nearest(name, self.classes)}"
                    )
        self._label_N = {s: np.array([self.classes.index(n) for n in names[s]]) for s in SPLITS}
        self._image_NP = {split: np.stack(images[split]) for split in SPLITS}
        pixels = self._image_NP["train"].shape[1]
        order_P = np.arange(pixels)
        self._order_P = permute(stream("pixels"), order_P, pixels) if config.permuted else order_P
        self.sequence_length = pixels + 1
        self.labels = tuple(range(self.levels, self.levels + len(self.classes)))
        self.vocabulary = Vocabulary(num_symbols=self.levels + len(self.classes), num_sentinels=1)

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        size, index_B = self.num_examples(split), np.arange(start, start + count, dtype=np.int64)
        if split == "train":
            chosen_B = epoch_order(seed, index_B, size)
        elif start + count > size:
            raise ValueError(f"the {split} split has {size} images; {count} were requested from {start} on")
        else:  # mixed, the same for every seed: datasets are often sorted by class
            chosen_B = permute(stream(split, "order"), index_B, size)
        tokens_BT = np.empty((count, self.sequence_length), dtype=np.int64)
        tokens_BT[:, :-1] = self._image_NP[split][chosen_B][:, self._order_P]
        tokens_BT[:, -1] = self.levels + self._label_N[split][chosen_B]
        context_BT = tokens_BT.copy()
        context_BT[:, -1] = 0
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, -1] = True
        return batch_of(tokens_BT, context_BT, answer_BT)

    def num_examples(self, split: str) -> int:
        """Images of the split; for ``train``, of one epoch (training may continue after it)."""
        return len(self._label_N[split])

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        digest = hashlib.sha256(f"images-1 {self.config.permuted} {self.classes}".encode())
        for split in SPLITS:
            digest.update(self._image_NP[split].tobytes() + self._label_N[split].tobytes())
        return digest.hexdigest()[:16]

    def references(self) -> list[Reference]:
        train_NP, label_N = self._image_NP["train"], self._label_N["train"]
        majority = int(np.bincount(label_N).argmax())
        mean_CP = np.stack([train_NP[label_N == c].mean(0) for c in range(len(self.classes))])
        # |x - m|^2 without |x|^2, which is the same for every class.
        distance_NC = (mean_CP**2).sum(1) - 2 * self._image_NP["test"].astype(np.float64) @ mean_CP.T
        return [
            Reference(
                name="majority",
                metric=self.metric,
                value=float((self._label_N["test"] == majority).mean()),
                note=f"always '{self.classes[majority]}', the most frequent class in training",
            ),
            Reference(
                name="nearest mean",
                metric=self.metric,
                value=float((distance_NC.argmin(1) == self._label_N["test"]).mean()),
                note="the class whose mean training image is nearest, pixel by pixel: no order is needed",
            ),
        ]


def _digits(config: ImagesConfig) -> Iterator[tuple[str, Row]]:
    """The digits with their splits, drawn once. The authors' training set does not ship with them."""
    from sklearn.datasets import load_digits  # imports in almost a second, only for this source

    images_NHW, label_N = load_digits(return_X_y=True)
    number_N = permute(stream("digits"), np.arange(len(label_N)), len(label_N))
    for i, rank in enumerate(number_N.tolist()):
        split = "test" if rank < _HELD_OUT else "validation" if rank < 2 * _HELD_OUT else "train"
        image_HW = images_NHW[i].reshape(8, 8).astype(np.uint8)
        yield split, Row(f"digit {i}", {config.image_column: image_HW, config.label_column: str(label_N[i])})


def _grey(row: Row, column: str) -> NDArray[np.uint8]:
    """Brightness of an image (H, W), 0 to 255; colours by ITU-R 601, as in Long Range Arena."""
    value: Any = value_in(row, column, "image_column")
    if isinstance(value, Mapping) and value.get("bytes"):  # the hub's layout in a Parquet file
        try:
            value = Image.open(io.BytesIO(value["bytes"]))
        except UnidentifiedImageError:
            raise DataError(f"{row.location}: column '{column}' holds bytes that are no image") from None
    if isinstance(value, Image.Image):
        return np.asarray(value.convert("L"))
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return value
    raise DataError(f"{row.location}: column '{column}' holds {type(value).__name__}, not an image")
