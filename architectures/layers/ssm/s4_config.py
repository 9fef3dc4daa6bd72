"""The settings of S4."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from archbench.architectures.layers.block import MixerConfig
from archbench.architectures.layers.ssm.discretization import (
    ALPHA,
    DISCRETISATIONS,
    largest_stable_euler_step,
)
from archbench.architectures.layers.ssm.hippo import EIGENVALUES, HIPPO, NPLR

PARAMETRISATIONS = ("diagonal", "dplr")
INITIALISATIONS = tuple(dict.fromkeys([*EIGENVALUES, *NPLR]))
TRANSFORMS = ("exp", "softplus")
INPUTS = ("ones", "trained")
SKIPS = ("ones", "normal")


@dataclass(frozen=True, kw_only=True)
class S4LayerConfig(MixerConfig):
    """An S4 layer."""

    d_state: int = 64
    """State of each channel, as a real system; half as many complex values are stored."""
    parametrisation: str = "diagonal"
    """The state matrix: ``diagonal`` (S4D), or ``dplr``, diagonal minus a matrix of rank one (S4),
    which goes with ``discretisation`` ``bilinear`` or ``euler``."""
    initialisation: str = "legs"
    """The state matrix at the start: ``legs`` (HiPPO-LegS, of which ``diagonal`` keeps the normal part);
    ``inv``, ``lin`` or ``real`` (S4D-Inv, S4D-Lin, S4D-Real), which are diagonal; ``legt`` or ``fourier``
    (HiPPO-LegT, HiPPO-FouT), which are diagonal less a matrix of rank two."""
    discretisation: str = "zoh"
    """From differential equation to recurrence: ``zoh`` (zero-order hold), ``bilinear`` or ``euler``."""
    dt_min: float = 0.001
    """Smallest time step at initialisation."""
    dt_max: float = 0.1
    """Largest time step at initialisation."""
    dt_scale: float = 1.0
    """Factor on all time steps: 2 reads a signal of which every other sample is left out."""
    dt_transform: str = "exp"
    """From the parameter to the time step: ``exp``, or ``softplus`` as in the authors' configurations."""
    dt_rate_cap: float | None = 1e-3
    """Largest learning rate of the time steps; null for that of the other weights. A and B have 1e-3."""
    num_systems: int | None = None
    """Different A and B, each shared by as many channels (the authors' ``n_ssm``); null for one of each
    channel. It must divide ``d_model``."""
    B: str = "ones"
    """The input of a ``diagonal`` system: fixed at ``ones``, as its freedom is also C's, or ``trained`` as in
    the authors' code, from HiPPO's where the initialisation is ``legs`` and else from ones. With ``dplr`` it
    is always trained, from HiPPO's."""
    B_clip: float | None = None
    """Largest imaginary part of HiPPO's B at the start, in the basis that makes A diagonal; the authors' code
    has 2. Null for no clipping."""
    D: str = "ones"
    """The skip at the start: ``ones``, or standard ``normal`` as in the authors' code."""
    C_length: int | None = None
    """Train C (1 - A^L) for this length L instead of C, with ``dplr``: the authors' code does, for the
    longest sequence. Both start at the same system. Null trains C."""

    def __post_init__(self) -> None:
        if self.d_state < 2 or self.d_state % 2:
            raise ValueError(f"d_state={self.d_state} must be even and at least 2")
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(
                f"dt_min={self.dt_min} and dt_max={self.dt_max} must satisfy 0 < dt_min <= dt_max"
            )
        if not self.dt_scale > 0:
            raise ValueError(
                f"dt_scale={self.dt_scale} must be positive; 1 leaves the time steps as they are"
            )
        for name, valid in (
            ("parametrisation", PARAMETRISATIONS),
            ("initialisation", INITIALISATIONS),
            ("discretisation", DISCRETISATIONS),
            ("dt_transform", TRANSFORMS),
            ("B", INPUTS),
            ("D", SKIPS),
        ):
            if getattr(self, name) not in valid:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(valid)}")
        for name in ("num_systems", "B_clip", "dt_rate_cap", "C_length"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be positive, or null")
        if self.parametrisation == "dplr":
            self._check_dplr()
        else:
            self._check_diagonal()
        if self.discretisation == "euler":
            self._check_euler()

    def _check_dplr(self) -> None:
        if self.initialisation not in NPLR:
            raise ValueError(
                f"initialisation={self.initialisation} is a diagonal matrix: with parametrisation=dplr it "
                f"must be {' or '.join(NPLR)}"
            )
        if self.discretisation not in ALPHA:
            raise ValueError(
                f"discretisation={self.discretisation} with parametrisation=dplr: the exponential of the "
                f"matrix is neither diagonal nor low-rank; choose {' or '.join(ALPHA)}"
            )

    def _check_diagonal(self) -> None:
        if self.initialisation not in EIGENVALUES:
            raise ValueError(
                f"initialisation={self.initialisation} is no diagonal matrix: choose parametrisation=dplr, "
                f"or one of {', '.join(EIGENVALUES)}"
            )
        if self.C_length is not None:
            raise ValueError(f"C_length={self.C_length} goes with parametrisation=dplr; leave it null")

    def _check_euler(self) -> None:
        """Raise ValueError if the step is so long that Euler's recurrence diverges for the fastest mode."""
        if self.parametrisation == "dplr":  # those of HiPPO itself
            eigenvalues = torch.linalg.eigvals(HIPPO[self.initialisation](self.d_state))
        else:
            eigenvalues = EIGENVALUES[self.initialisation](self.d_state)
        longest = largest_stable_euler_step(eigenvalues)
        if self.dt_max * self.dt_scale > longest:
            raise ValueError(
                f"dt_max={self.dt_max} with discretisation=euler: the state grows without bound at steps "
                f"above {longest:.2g} (d_state={self.d_state}, initialisation={self.initialisation}, "
                f"dt_scale={self.dt_scale:g}); lower dt_min and dt_max, or choose bilinear or zoh"
            )
