"""A recurrent mixer that sees both sides: one scan from the left, one from the right, added.

So do Vision Mamba (Zhu et al. 2024, arXiv 2401.09417) and Caduceus (Schiff et al. 2024, arXiv 2403.03234).
The sum costs no parameters and no matrix product, which concatenation and a projection would.

Shapes: B batch, T length, D d_model, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.layers.block import Mixer
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer

DIRECTIONS = ("tied", "separate")


@dataclass(frozen=True, kw_only=True)
class DirectionsConfig:
    """Combination of the two directions of a bidirectional recurrent mixer."""

    directions: str = "tied"
    """``tied``: both read the same projection of the input and are projected back together (Caduceus); what
    moves the state (convolution, decays, skip, inner norms) is separate for each direction. ``separate``: two
    complete mixers. Two identical scans could not distinguish left from right. S4 is neither: one system with
    a readout for each direction."""

    def __post_init__(self) -> None:
        if self.directions not in DIRECTIONS:
            raise ValueError(f"directions={self.directions!r} must be one of {', '.join(DIRECTIONS)}")


class Bidirectional(Mixer):
    """``past(x) + mirrored(future(mirrored(x)))``, for two mixers of one type.

    Mirroring reverses the valid tokens of each row and leaves padding on the right, so that the second
    mixer also reads padding last; documents come in the opposite order, each from its end.
    """

    def __init__(self, past: RecurrentMixer, future: RecurrentMixer, *, tied: bool) -> None:
        super().__init__()
        self.past, self.future, self.tied = past, future, tied
        if tied:
            future.borrow(past)

    @property
    def canon_widths(self) -> dict[str, int]:
        """Return no inputs: each direction has its own."""
        return {}

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        mirror = context.once("mirror", lambda: Mirror.of(x_BTD[..., 0], context))
        projected = self.past.project(x_BTD)
        # Projections look at one position at a time: mirrored before or after, they are the same.
        turned = tuple(map(mirror, projected)) if self.tied else self.future.project(mirror(x_BTD))
        past_BTC, _ = self.past.mix(projected, None, context)
        turned_BTC, _ = self.future.mix(turned, None, mirror.context)
        if self.tied:
            return self.past.out(past_BTC + mirror(turned_BTC))
        return self.past.out(past_BTC) + mirror(self.future.out(turned_BTC))

    def flops(self, length: int) -> Flops:
        """Both scans; what is projected once for both counts once."""
        both = self.past.flops(length) + self.future.flops(length)
        twice = linear_flops(self.past, length) + linear_flops(self.future, length)
        return both - Flops(linear=twice - linear_flops(self, length))


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """Turns sequences around, each row within its valid tokens."""

    context: Context
    """The context of what is turned around."""
    index_BT1: Tensor | None
    """Index of each token before mirroring; None where all rows are valid throughout."""

    @classmethod
    def of(cls, any_BT: Tensor, context: Context) -> Mirror:
        """The mirror of full sequences; only the shape and device of ``any_BT`` are read."""
        assert context.start == 0
        assert context.visible is None
        index_BT1, documents_BT = None, context.documents_BT
        if context.valid_BT is not None:
            index_T = torch.arange(any_BT.shape[1], device=any_BT.device)
            length_B1 = context.valid_BT.sum(1, keepdim=True)
            index_BT1 = torch.where(index_T < length_B1, length_B1 - 1 - index_T, index_T)[..., None]
        if documents_BT is not None:
            documents_BT = turn(documents_BT[..., None], index_BT1)[..., 0]
        turned = Context.whole(any_BT, context.valid_BT, documents_BT)
        turned.carried = context.carried_mirrored
        return cls(context=turned, index_BT1=index_BT1)

    def __call__(self, x_BTC: Tensor) -> Tensor:
        return turn(x_BTC, self.index_BT1)


def turn(x_BTC: Tensor, index_BT1: Tensor | None) -> Tensor:
    """The tokens in the order of ``index_BT1``; None for the last first."""
    return x_BTC.flip(1) if index_BT1 is None else x_BTC.gather(1, index_BT1.expand_as(x_BTC))


def directions(model: nn.Module) -> int:
    """Return the number of scans in excess of one for each mixer: additional outputs that are summed."""
    return sum(isinstance(part, Bidirectional) for part in model.modules())
