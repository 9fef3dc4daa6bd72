"""DeltaProduct: the delta rule with multiple updates of the memory for each token.

Siems et al. 2025 (arXiv 2502.10297). Each token has n keys, values and betas. The transition of the memory is
then a product of n generalised Householder matrices, which with eigenvalues in [-1, 1] can be any
permutation of n + 1 elements; that of DeltaNet is one of them. One update is DeltaNet, or Gated DeltaNet with
the forget gate, by which the memory decays before the first update of a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from archbench.architectures.mixers.deltanet import DeltaRule
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig, GatedDeltaRule


@dataclass(frozen=True, kw_only=True)
class HouseholderConfig(GatedDeltaConfig):
    """DeltaProduct; the defaults are those of the authors' layer, with fewer heads for small models."""

    num_householder: int = 2
    """Updates of the memory for each token, each with a key, a value and a beta."""
    forget_gate: bool = True
    """A decay of each head, as in Gated DeltaNet."""
    negative_eigenvalues: bool = True
    """beta in (0, 2), not (0, 1): each update may reflect the memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_householder < 1:
            raise ValueError(f"num_householder={self.num_householder} must be at least 1")


def delta_product(d_model: int, config: HouseholderConfig, *, norm_eps: float = 1e-5) -> DeltaRule:
    """Return the (gated) delta rule with ``num_householder`` updates for each token."""
    updates = config.num_householder
    if config.forget_gate:
        return GatedDeltaRule(d_model, config, norm_eps=norm_eps, updates=updates)
    value_heads = config.num_value_heads
    return DeltaRule(d_model, config, norm_eps=norm_eps, value_heads=value_heads, updates=updates)


Config = HouseholderConfig
make = delta_product
