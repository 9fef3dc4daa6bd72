"""S4: a linear system of each channel, with a matrix that is diagonal (S4D) or diagonal minus rank one."""

from __future__ import annotations

from functools import partial

from archbench.architectures.layers.ssm.s4_config import S4LayerConfig
from archbench.architectures.layers.ssm.s4_dplr import LAYERS
from archbench.architectures.layers.ssm.s4d import S4Layer

Config = S4LayerConfig


def make(d_model: int, settings: S4LayerConfig, *, norm_eps: float, bidirectional: bool = False) -> S4Layer:
    """Return a layer, which has no norm inside and therefore ignores ``norm_eps``."""
    return LAYERS[settings.parametrisation](d_model, settings, bidirectional=bidirectional)


make_bidirectional = partial(make, bidirectional=True)
