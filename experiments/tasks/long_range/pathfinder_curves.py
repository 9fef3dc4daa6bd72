"""Dashed curves that touch neither each other nor themselves, for many images at once.

A curve grows dash by dash, as in the generator of Linsley et al. 2018 (arXiv 1805.08315): the next dash
turns by an angle delta with density in proportion to cos^2(continuity * delta), among those directions that
are free. Where no direction is free, the image restarts with other random values of its stream: an
image does not depend on its neighbours in the batch.

Shapes: B images, S curves, N points of a curve (start and end of each dash), K directions or starts
tried, H = W pixels. A point is (row, column).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import uniform
from archbench.experiments.runtime.seeds import stream

_TRIES = 8
"""Pairs of long curves tried at once for each image."""
_SPARE = 0.5
"""Pixels by which curves keep further apart than the dashes of one curve."""
_DIRECTIONS = 16
"""Directions tried at each step."""
_SHARP = 1e-6
"""Weight of turns of up to 90 degrees for any continuity: used where no other direction is free."""
_STARTS = 16
"""Places tried for the start of a short curve."""
_RETRIES = 4
"""Number of restarts of a short curve, as in the original."""
_BORDER = 1.0
"""Pixels that stay empty at the edges."""
_ATTEMPTS = 2000
"""Far more than any image needed; reached only where the settings leave no free pixels."""


@dataclass(frozen=True, kw_only=True)
class CurveConfig:
    """The geometry of dashes, in pixels."""

    size: int
    dash_length: int
    margins: tuple[int, ...]
    thickness: float
    continuity: float


@dataclass(frozen=True)
class Curves:
    """Curves of many images."""

    points_BSN2: NDArray[np.float64]
    """Start and end of each dash in turn, from one end of the curve to the other."""
    present_B: NDArray[np.bool_]
    """False where the curves did not fit into the image."""


class Grid:
    """Pixels of each image that are too close to a dash for another one."""

    def __init__(self, config: CurveConfig, margin_B: NDArray[np.int64]) -> None:
        self.config, self.margin_B = config, margin_B
        self.taken_BHW = np.zeros((len(margin_B), config.size, config.size), dtype=bool)
        self._clearance_B = 2.0 * margin_B + _SPARE
        reach = int(np.ceil(self._clearance_B.max()))
        offset = np.arange(-reach, reach + 1)
        self._offset_O2 = np.stack(np.meshgrid(offset, offset, indexing="ij"), axis=-1).reshape(-1, 2)

    def free(self, rows: NDArray[np.int64], dash: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return True (R, ...) for dashes (R, ..., 2, 2) of the images ``rows`` on free pixels inside."""
        point = _inner(dash)
        inside = ((point >= _BORDER) & (point <= self.config.size - 1 - _BORDER)).all(-1)
        pixel = np.clip(np.rint(point), 0, self.config.size - 1).astype(np.int64)
        row = rows.reshape(-1, *[1] * (pixel.ndim - 2))
        free: NDArray[np.bool_] = inside & ~self.taken_BHW[row, pixel[..., 0], pixel[..., 1]]
        return np.asarray(free.all(-1))

    def take(self, rows: NDArray[np.int64], dash_R22: NDArray[np.float64]) -> None:
        """Closes the surroundings of a dash in each of the images ``rows``."""
        place_RP12 = _inner(dash_R22)[:, :, None]
        pixel_RPO2 = np.rint(place_RP12).astype(np.int64) + self._offset_O2
        near_RPO = ((pixel_RPO2 - place_RP12) ** 2).sum(-1) <= self._clearance_B[rows, None, None] ** 2
        inside_RPO = ((pixel_RPO2 >= 0) & (pixel_RPO2 < self.config.size)).all(-1)
        r, p, o = np.nonzero(near_RPO & inside_RPO)
        self.taken_BHW[rows[r], pixel_RPO2[r, p, o, 0], pixel_RPO2[r, p, o, 1]] = True


def _inner(dash: NDArray[np.float64]) -> NDArray[np.float64]:
    """Start, middle and end of dashes (..., 2, 2): (..., 3, 2). Closer together than any clearance."""
    return np.stack([dash[..., 0, :], dash.mean(-2), dash[..., 1, :]], axis=-2)


def _vector(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)


def _extend(
    grid: Grid,
    rows: NDArray[np.int64],
    tip_R2: NDArray[np.float64],
    angle_R: NDArray[np.float64],
    drawn_R: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """The angle of the dash after a tip, its start and end (R, 2, 2), and whether a direction was free."""
    c = grid.config
    margin_R1 = grid.margin_B[rows].astype(np.float64)[:, None]
    turn_K = ((np.arange(_DIRECTIONS) + 0.5) / _DIRECTIONS - 0.5) * np.pi
    weight_K = np.cos(np.minimum(np.abs(turn_K) * c.continuity, np.pi / 2)) ** 2
    weight_K += _SHARP * np.cos(turn_K) ** 2
    pivot_R2 = tip_R2 + margin_R1 * _vector(angle_R)
    direction_RK2 = _vector(angle_R[:, None] + turn_K)
    start_RK2 = pivot_R2[:, None] + margin_R1[..., None] * direction_RK2
    dash_RK22 = np.stack([start_RK2, start_RK2 + c.dash_length * direction_RK2], axis=-2)
    total_RK = np.cumsum(grid.free(rows, dash_RK22) * weight_K, axis=1)
    # Drawn values are above 0, so a direction without weight is never selected.
    chosen_R = (total_RK < drawn_R[:, None] * total_RK[:, -1:]).sum(1)
    dash_R22 = dash_RK22[np.arange(len(rows)), chosen_R]
    return angle_R + turn_K[chosen_R], dash_R22, total_RK[:, -1] > 0


def _grow(
    grids: list[Grid],
    alive: NDArray[np.int64],
    start_BS2: NDArray[np.float64],
    angle_BS: NDArray[np.float64],
    drawn_BSD: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Grow curves from given starts, one dash each in turn: their points, and which images fit all of them.

    Each curve has a separate grid, in which its last dash is open because the next dash begins next to it.
    At the end the grids are equal. They are marked even where growing fails.

    Args:
        alive: indices of the images to try.
        drawn_BSD: a random number for each dash.
    """
    num_images, num_curves, num_dashes = drawn_BSD.shape
    points_BSN2 = np.zeros((num_images, num_curves, 2 * num_dashes, 2))
    angle_BS = angle_BS.copy()
    for dash in range(num_dashes + 1):
        for s, grid in enumerate(grids):
            if dash > 0:
                last_R22 = points_BSN2[alive, s, 2 * dash - 2 : 2 * dash]
            if dash == num_dashes:
                grid.take(alive, last_R22)
                continue
            if dash == 0:
                angle_R = angle_BS[alive, s]
                end_R2 = start_BS2[alive, s] + grid.config.dash_length * _vector(angle_R)
                new_R22 = np.stack([start_BS2[alive, s], end_R2], axis=1)
                found_R = grid.free(alive, new_R22)
            else:
                angle_R, new_R22, found_R = _extend(
                    grid, alive, last_R22[:, 1], angle_BS[alive, s], drawn_BSD[alive, s, dash]
                )
                grid.take(alive, last_R22)
            alive, new_R22 = alive[found_R], new_R22[found_R]
            angle_BS[alive, s] = angle_R[found_R]
            points_BSN2[alive, s, 2 * dash : 2 * dash + 2] = new_R22
            for other_grid in grids:
                if other_grid is not grid:
                    other_grid.take(alive, new_R22)
    good_B = np.zeros(num_images, dtype=bool)
    good_B[alive] = True
    return points_BSN2, good_B


def grow_pair(
    config: CurveConfig, key: int, index_B: NDArray[np.int64], num_dashes: int, distance: float
) -> tuple[Curves, Grid]:
    """Two curves for each image that start ``distance`` apart near its middle, and what they take."""
    drawn_B = uniform(stream(key, "margin"), index_B, 1)[:, 0]
    margin_B = np.array(config.margins)[(drawn_B * len(config.margins)).astype(np.int64)]
    grid = Grid(config, margin_B)
    points_BSN2 = np.zeros((len(index_B), 2, 2 * num_dashes, 2))
    pending_B = np.arange(len(index_B))
    # The first start is where the second fits on every side.
    free = min(2 * distance, (config.size - 1) / 2 - 2)
    for attempt in range(_ATTEMPTS):
        if len(pending_B) == 0:
            return Curves(points_BSN2, np.ones(len(index_B), dtype=bool)), grid
        candidate_N = (index_B[pending_B][:, None] * _TRIES + np.arange(_TRIES)).ravel()
        drawn_NX = uniform(stream(key, "pair", attempt), candidate_N, 5 + 2 * num_dashes)
        first_N2 = free + drawn_NX[:, :2] * (config.size - 1 - 2 * free)
        second_N2 = first_N2 + distance * _vector(2 * np.pi * drawn_NX[:, 2])
        grids = [Grid(config, np.repeat(margin_B[pending_B], _TRIES)) for _ in range(2)]
        points_NSD2, good_N = _grow(
            grids,
            np.arange(len(candidate_N)),
            np.stack([first_N2, second_N2], axis=1),
            2 * np.pi * drawn_NX[:, 3:5],
            drawn_NX[:, 5:].reshape(-1, 2, num_dashes),
        )
        good_RK = good_N.reshape(-1, _TRIES)
        chosen_R = (np.arange(len(pending_B)) * _TRIES + good_RK.argmax(1))[good_RK.any(1)]
        done_R = pending_B[good_RK.any(1)]
        points_BSN2[done_R] = points_NSD2[chosen_R]
        grid.taken_BHW[done_R] = grids[0].taken_BHW[chosen_R]
        pending_B = pending_B[~good_RK.any(1)]
    raise ValueError(f"no two curves of {num_dashes} dashes fit into size={config.size}: use fewer dashes")


def grow_distractors(
    config: CurveConfig, grid: Grid, key: int, index_B: NDArray[np.int64], num_dashes: int, count: int
) -> list[Curves]:
    """Grow up to ``count`` further curves where the grid is free."""
    rows, curves = np.arange(len(index_B)), []
    for index in range(count):
        short = Curves(np.zeros((len(rows), 1, 2 * num_dashes, 2)), np.zeros(len(rows), dtype=bool))
        for retry in range(_RETRIES):
            drawn_BX = uniform(stream(key, "short", index, retry), index_B, 3 * _STARTS + num_dashes)
            place_BK2 = drawn_BX[:, : 2 * _STARTS].reshape(-1, _STARTS, 2) * (config.size - 1)
            angle_BK = 2 * np.pi * drawn_BX[:, 2 * _STARTS : 3 * _STARTS]
            dash_BK22 = np.stack([place_BK2, place_BK2 + config.dash_length * _vector(angle_BK)], axis=-2)
            chosen_B = grid.free(rows, dash_BK22).argmax(1)
            before_BHW = grid.taken_BHW.copy()
            points_BSN2, good_B = _grow(
                [grid],
                rows[~short.present_B],
                place_BK2[rows, chosen_B][:, None],
                angle_BK[rows, chosen_B][:, None],
                drawn_BX[:, None, 3 * _STARTS :],
            )
            grid.taken_BHW[~good_B] = before_BHW[~good_B]
            short.points_BSN2[good_B] = points_BSN2[good_B]
            short.present_B[good_B] = True
        curves.append(short)
    return curves
