"""The settings of S4."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from architectures.layers.ssm.discretization import ALPHA, DISCRETISATIONS, largest_stable_euler_step
from architectures.layers.ssm.hippo import EIGENVALUES

PARAMETRISATIONS = ("diagonal", "dplr")


@dataclass(frozen=True, kw_only=True)
class S4LayerConfig:
    """An S4 layer."""

    d_state: int = 64
    """State of each channel, as a real system; half as many complex numbers are kept."""
    parametrisation: str = "diagonal"
    """The state matrix: ``diagonal`` (S4D), or ``dplr``, diagonal minus a matrix of rank one (S4)."""
    initialisation: str = "legs"
    """The state matrix at the start: ``legs`` (HiPPO-LegS, of which ``diagonal`` keeps the normal part),
    ``inv``, ``lin`` or ``real`` (S4D-Inv, S4D-Lin, S4D-Real)."""
    discretisation: str = "zoh"
    """From differential equation to recurrence: ``zoh`` (zero-order hold), ``bilinear`` or ``euler``."""
    dt_min: float = 0.001
    """Smallest time step at initialisation."""
    dt_max: float = 0.1
    """Largest time step at initialisation."""
    dt_scale: float = 1.0
    """Factor on all time steps: 2 reads a signal of which every other sample is left out."""

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
        for name, known in (
            ("parametrisation", PARAMETRISATIONS),
            ("initialisation", EIGENVALUES),
            ("discretisation", DISCRETISATIONS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(known)}")
        if self.parametrisation == "dplr":
            self._check_dplr()
        if self.discretisation == "euler":
            self._check_euler()

    def _check_dplr(self) -> None:
        if self.initialisation != "legs":
            raise ValueError(
                f"initialisation={self.initialisation} is a diagonal matrix: with parametrisation=dplr it "
                "must be legs"
            )
        if self.discretisation not in ALPHA:
            raise ValueError(
                f"discretisation={self.discretisation} with parametrisation=dplr: the exponential of the "
                f"matrix is neither diagonal nor low-rank; choose {' or '.join(ALPHA)}"
            )

    def _check_euler(self) -> None:
        """Euler's recurrence grows without bound where the step is too long for the fastest mode."""
        eigenvalues = EIGENVALUES[self.initialisation](self.d_state)
        if self.parametrisation == "dplr":  # those of HiPPO-LegS itself
            eigenvalues = torch.complex(-torch.arange(1.0, self.d_state + 1), torch.zeros(self.d_state))
        longest = largest_stable_euler_step(eigenvalues)
        if self.dt_max * self.dt_scale > longest:
            raise ValueError(
                f"dt_max={self.dt_max} with discretisation=euler: the state grows without bound at steps "
                f"above {longest:.2g} (d_state={self.d_state}, initialisation={self.initialisation}, "
                f"dt_scale={self.dt_scale:g}); lower dt_min and dt_max, or choose bilinear or zoh"
            )
