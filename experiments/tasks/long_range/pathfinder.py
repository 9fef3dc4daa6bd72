"""Pathfinder: are the two dots the ends of one dashed curve? An image, read pixel by pixel.

Linsley et al. 2018 (arXiv 1805.08315), with the parameters of Long Range Arena (Tay et al. 2020, arXiv
2011.04006, ``lra_benchmarks/data/pathfinder.py``). Each image has two long curves and shorter ones that
distract. A dot marks an end of a long curve; another the other end of the same curve (label 1) or of the
other one (label 0). ``pathfinder_curves.py`` grows them.

A token is a pixel's brightness, 0 to 255, row by row; the answer is last.

Shapes: B examples, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import uniform
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.long_range.pathfinder_curves import (
    CurveConfig,
    Curves,
    grow_distractors,
    grow_pair,
)
from archbench.experiments.tasks.long_range.pathfinder_drawing import draw, draw_dots
from archbench.experiments.tasks.long_range.threshold import Measured, threshold_accuracy
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import Generated, GeneratedConfig, batch_of
from archbench.experiments.tasks.task import Batch

_FIT, _SCORED = 256, 256
"""Training and test images of the shallow baseline."""


@dataclass(frozen=True, kw_only=True)
class PathfinderConfig(GeneratedConfig):
    """Settings of Pathfinder; the defaults are those of Long Range Arena at 32 by 32."""

    size: int = 32
    """Height and width of the image in pixels."""
    dash_length: int = 2
    """Length of a dash in pixels."""
    margins: list[int] = field(default_factory=lambda: [1])
    """Half the gap between dashes in pixels; for each image one of these."""
    thickness: float = 0.5
    """Half the width of a dash in pixels."""
    num_dashes: int = 14
    """Dashes of each of the two long curves; 9 and 6 are easier."""
    continuity: float = 1.0
    """Straightness of curves: the turn between dashes is below 90 degrees divided by this."""
    start_distance: float = 7.0
    """Distance between the starts of the two long curves in pixels."""
    num_distractors: int = 5
    """Short curves, as many as fit."""
    distractor_dashes: int = 4
    """Dashes of a short curve."""
    dot_radius: float = 1.5
    """Radius of the dots in pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 16 or self.dash_length < 1 or self.num_dashes < 2 or self.distractor_dashes < 1:
            raise ValueError(
                f"size={self.size} must be at least 16, num_dashes={self.num_dashes} at least 2, "
                f"dash_length={self.dash_length} and distractor_dashes={self.distractor_dashes} at least 1"
            )
        if not self.margins or min(self.margins) < 1:
            raise ValueError(f"margins={self.margins} must be a list of numbers of 1 or more")
        if self.continuity < 1 or min(self.thickness, self.start_distance, self.dot_radius) <= 0:
            raise ValueError("continuity must be at least 1; thickness, start_distance, dot_radius above 0")
        if self.num_distractors < 0:
            raise ValueError(f"num_distractors={self.num_distractors} must not be negative")
        longest = self.num_dashes * (self.dash_length + 2 * max(self.margins))
        if longest > 2.5 * self.size:
            raise ValueError(
                f"two curves of {longest} pixels each do not fit into size={self.size}: "
                "lower num_dashes, dash_length or margins, or raise size"
            )


class Pathfinder(Generated):
    """Pathfinder as a sequence of pixels. Both labels are equally likely."""

    Config = PathfinderConfig
    generator = "pathfinder-1"
    has_labels = True
    labels = (256, 257)
    levels = 256

    def __init__(self, config: PathfinderConfig) -> None:
        self.config = config
        self.sequence_length = config.size**2 + 1
        self.vocabulary = Vocabulary(num_symbols=256 + len(self.labels), num_sentinels=1)
        self._curves = CurveConfig(
            size=config.size,
            dash_length=config.dash_length,
            margins=tuple(config.margins),
            thickness=config.thickness,
            continuity=config.continuity,
        )

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        pair, others, label_B = self.scenes(split, seed, index_B)
        image_BHW = draw(self._curves, [pair, *others])
        draw_dots(image_BHW, dots(pair, label_B), self.config.dot_radius)
        tokens_BT = np.empty((len(index_B), self.sequence_length), dtype=np.int64)
        tokens_BT[:, :-1] = np.rint(255 * image_BHW).astype(np.int64).reshape(len(index_B), -1)
        tokens_BT[:, -1] = np.array(self.labels)[label_B]
        context_BT = tokens_BT.copy()
        context_BT[:, -1] = 0
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, -1] = True
        return batch_of(tokens_BT, context_BT, answer_BT)

    def scenes(
        self, split: str, seed: int, index_B: NDArray[np.int64]
    ) -> tuple[Curves, list[Curves], NDArray[np.int64]]:
        """Draw the contents of the images: the two long curves, the short ones, and the labels (B,)."""
        c = self.config
        key = stream(seed, split, "pathfinder")
        label_B = (uniform(stream(key, "label"), index_B, 1)[:, 0] < 0.5).astype(np.int64)
        pair, grid = grow_pair(self._curves, key, index_B, c.num_dashes, c.start_distance)
        others = grow_distractors(self._curves, grid, key, index_B, c.distractor_dashes, c.num_distractors)
        return pair, others, label_B

    @cached_property
    def _by_distance(self) -> float:
        """Test accuracy of the best threshold on the distance between the dots."""
        measured = []
        for split, count in (("train", _FIT), ("test", _SCORED)):
            pair, _, label_B = self.scenes(split, 0, np.arange(count))
            ends_BE2 = dots(pair, label_B)
            measured.append(Measured(np.linalg.norm(ends_BE2[:, 0] - ends_BE2[:, 1], axis=1), label_B))
        return threshold_accuracy(*measured)

    def references(self) -> list[Reference]:
        return [
            Reference(name="chance", metric=self.metric, value=0.5, note="the labels are equally likely"),
            Reference(
                name="distance of the dots",
                metric=self.metric,
                value=self._by_distance,
                note="a threshold on it, fitted in training: what a model reaches that follows no curve",
            ),
        ]


def dots(pair: Curves, label_B: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the two dots (B, 2, 2): the start of the first long curve, and an end by the label."""
    rows = np.arange(len(label_B))
    ends_BE2 = pair.points_BSN2[rows, 1 - label_B, -1]
    return np.stack([pair.points_BSN2[:, 0, 0], ends_BE2], axis=1)
