"""Draws dashed curves and dots, antialiased, for many images at once.

Shapes: B images, R of them, S curves, E dots, P pixels around a dash, H = W pixels. A point is (row, column).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.tasks.long_range.pathfinder_curves import CurveConfig, Curves


def draw(config: CurveConfig, curves: list[Curves]) -> NDArray[np.float64]:
    """Images (B, H, W) in 0..1: each pixel as bright as it is near a dash."""
    image_BHW = np.zeros((len(curves[0].present_B), config.size, config.size))
    reach = int(np.ceil(config.dash_length / 2 + config.thickness)) + 1
    for curve in curves:
        for s, dash in np.ndindex(curve.points_BSN2.shape[1], curve.points_BSN2.shape[2] // 2):
            rows = np.flatnonzero(curve.present_B)
            dash_R22 = curve.points_BSN2[rows, s, 2 * dash : 2 * dash + 2]
            _paint(image_BHW, rows, dash_R22, config.thickness, reach)
    return image_BHW


def draw_dots(image_BHW: NDArray[np.float64], place_BE2: NDArray[np.float64], radius: float) -> None:
    """Adds filled circles to the images: dashes without length."""
    rows = np.arange(len(image_BHW))
    for e in range(place_BE2.shape[1]):
        _paint(image_BHW, rows, np.repeat(place_BE2[:, e : e + 1], 2, axis=1), radius, int(radius) + 2)


def _paint(
    image_BHW: NDArray[np.float64],
    rows: NDArray[np.int64],
    dash_R22: NDArray[np.float64],
    half_width: float,
    reach: int,
) -> None:
    """Brightens the pixels within ``half_width`` of a dash; the edge falls off over one pixel."""
    size = image_BHW.shape[1]
    offset_P = np.arange(-reach, reach + 1)
    offset_P2 = np.stack(np.meshgrid(offset_P, offset_P, indexing="ij"), axis=-1).reshape(-1, 2)
    pixel_RP2 = np.rint(dash_R22.mean(1)).astype(np.int64)[:, None] + offset_P2
    along_R12 = (dash_R22[:, 1] - dash_R22[:, 0])[:, None]
    from_start_RP2 = pixel_RP2 - dash_R22[:, :1]
    share_RP = (from_start_RP2 * along_R12).sum(-1) / np.maximum((along_R12**2).sum(-1), 1e-9)
    nearest_RP2 = np.clip(share_RP, 0, 1)[..., None] * along_R12
    distance_RP = np.linalg.norm(from_start_RP2 - nearest_RP2, axis=-1)
    bright_RP = np.clip(half_width + 0.5 - distance_RP, 0, 1)
    r, p = np.nonzero((bright_RP > 0) & ((pixel_RP2 >= 0) & (pixel_RP2 < size)).all(-1))
    at = (rows[r], pixel_RP2[r, p, 0], pixel_RP2[r, p, 1])  # no pixel of an image twice
    image_BHW[at] = np.maximum(image_BHW[at], bright_RP[r, p])
