"""The label is found again by flooding the curves from dot to dot, on a raster of their middle lines."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import ndimage

from archbench.experiments.tasks.long_range.pathfinder import Pathfinder, PathfinderConfig, dots
from archbench.experiments.tasks.long_range.pathfinder_curves import Curves
from archbench.experiments.tasks.long_range.pathfinder_drawing import draw

NANO = {
    "size": 16,
    "num_dashes": 3,
    "continuity": 1.5,
    "start_distance": 4.0,
    "num_distractors": 1,
    "distractor_dashes": 2,
}
SCALE = 8
"""Cells of the raster per pixel."""
PATH_X = {
    "size": 128,
    "dash_length": 5,
    "margins": [2, 3],
    "thickness": 1.5,
    "continuity": 1.8,
    "start_distance": 20.0,
    "num_distractors": 8,
    "dot_radius": 3.0,
}


@pytest.fixture(scope="module")
def task():
    return Pathfinder(PathfinderConfig())


def cells(points_N2, size):
    """Raster cells of the line through the points."""
    steps = [np.linspace(a, b, 8 * SCALE) for a, b in pairwise(points_N2)]
    return tuple(np.rint(np.concatenate(steps) * SCALE).astype(int).T)


def raster(scene, image, size):
    """Every curve of an image, its gaps closed."""
    taken = np.zeros((size * SCALE, size * SCALE), dtype=bool)
    pair, others, _ = scene
    for curves in (pair, *others):
        if curves.present_B[image]:
            for points_N2 in curves.points_BSN2[image]:
                taken[cells(points_N2, size)] = True
    return taken


def connected(scene, image, size):
    """Whether a flood from one dot reaches the other."""
    regions, _ = ndimage.label(raster(scene, image, size), structure=np.ones((3, 3)))
    pair, _, label_B = scene
    start, end = np.rint(dots(pair, label_B)[image] * SCALE).astype(int)
    assert regions[tuple(start)] > 0
    assert regions[tuple(end)] > 0
    return regions[tuple(start)] == regions[tuple(end)]


@pytest.mark.parametrize(
    ("settings", "images"), [({}, 24), (PATH_X, 4), (NANO, 24)], ids=["pathfinder", "path_x", "nano"]
)
def test_the_label_says_whether_a_path_connects_the_dots(settings, images):
    task = Pathfinder(PathfinderConfig(**settings))
    scene = task.scenes("train", 1, np.arange(images))
    found = [connected(scene, image, task.config.size) for image in range(images)]
    assert found == scene[2].astype(bool).tolist()
    answers = task.batch("train", 1, 0, images).tokens_BT[:, -1]
    assert answers.tolist() == [task.labels[label] for label in scene[2]]
    assert set(found) == {True, False}


def test_dashes_are_bright_and_the_rest_is_dark(task):
    scene = task.scenes("train", 0, np.arange(16))
    image_BHW = task.batch("train", 0, 0, 16).tokens_BT[:, :-1].reshape(16, 32, 32).numpy()
    assert image_BHW.min() == 0
    assert image_BHW.max() == 255
    for image in range(16):
        pair, _, label_B = scene
        far = ndimage.distance_transform_edt(~raster(scene, image, 32))[::SCALE, ::SCALE] / SCALE
        near_dot = np.zeros((32, 32), dtype=bool)
        for place in dots(pair, label_B)[image]:
            row, column = np.rint(place).astype(int)
            assert image_BHW[image, row, column] == 255
            y, x = np.ogrid[:32, :32]
            near_dot |= (y - place[0]) ** 2 + (x - place[1]) ** 2 < 4
        assert (image_BHW[image][(far > 1.5) & ~near_dot] == 0).all()
        middle = pair.points_BSN2[image].reshape(2, -1, 2, 2).mean(2).reshape(-1, 2)
        row, column = np.rint(middle).astype(int).T
        assert (image_BHW[image, row, column] > 0).all()


def test_curves_keep_apart_and_turn_by_less_than_a_right_angle(task):
    pair, others, _ = task.scenes("train", 0, np.arange(32))
    first, second = pair.points_BSN2[:, 0], pair.points_BSN2[:, 1]
    distance = np.linalg.norm(first[:, :, None] - second[:, None], axis=-1)
    assert distance.min() > 1.7  # 2.5 pixels, less what rounding to pixels takes
    for curves in (pair, *others):
        dash = np.diff(curves.points_BSN2[curves.present_B], axis=2)[:, :, ::2]
        assert np.allclose(np.linalg.norm(dash, axis=-1), 2)
        cosine = (dash[:, :, 1:] * dash[:, :, :-1]).sum(-1) / 4
        assert cosine.min() > 0
    assert others[0].present_B.mean() > 0.8  # there is room for the first distractor nearly always
    starts = np.linalg.norm(first[:, 0] - second[:, 0], axis=-1)
    assert np.allclose(starts, 7)


def test_the_distance_of_the_dots_says_little_unless_curves_are_short(task, monkeypatch):
    monkeypatch.setattr("archbench.experiments.tasks.long_range.pathfinder._FIT", 64)
    monkeypatch.setattr("archbench.experiments.tasks.long_range.pathfinder._SCORED", 64)
    found = {reference.name: reference.value for reference in task.references()}
    assert found["chance"] == 0.5
    assert abs(found["distance of the dots"] - 0.5) < 4 * math.sqrt(0.25 / 64)
    short = Pathfinder(PathfinderConfig(size=24, num_dashes=3, num_distractors=0))
    assert short.references()[1].value > 0.6
    labels = short.batch("validation", 0, 0, 200).tokens_BT[:, -1]
    assert abs((labels == 257).float().mean() - 0.5) < 4 * math.sqrt(0.25 / 200)


def test_an_image_is_a_function_of_split_seed_and_number(task):
    together = task.batch("train", 3, 100, 6)
    for start, count in ((100, 1), (103, 3)):
        part = task.batch("train", 3, start, count)
        assert torch.equal(part.tokens_BT, together.tokens_BT[start - 100 :][:count])
    assert not torch.equal(task.batch("test", 3, 100, 6).tokens_BT, together.tokens_BT)
    assert not torch.equal(task.batch("train", 4, 100, 6).tokens_BT, together.tokens_BT)
    assert together.answer_BT[:, -1].all()
    assert together.answer_BT.sum() == 6
    assert (together.context_BT[:, -1] == 0).all()
    assert task.sequence_length == 1025


def test_curves_of_an_image_without_room_are_not_drawn(task):
    points = np.array([[[[4.0, 4.0], [4.0, 6.0]]]] * 2)
    image_BHW = draw(task._curves, [Curves(points, np.array([True, False]))])
    assert image_BHW[0].any()
    assert not image_BHW[1].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 8}, "size=8 must be at least 16"),
        ({"margins": []}, r"margins=\[\]"),
        ({"continuity": 0.5}, "continuity must be at least 1"),
        ({"num_dashes": 40}, "160 pixels each do not fit into size=32"),
        ({"num_distractors": -1}, "num_distractors=-1"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        PathfinderConfig(**settings)
