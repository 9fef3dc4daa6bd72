"""Mixture of depths: blocks that process a fraction of the tokens of a sequence.

Raposo et al. 2024 (arXiv 2404.02258). A router gives each token a weight r. In training a block processes the
tokens X of a sequence with the highest weights, ``x + r (block(X) - x)``, and the other tokens keep their
vectors (eq. 1). That selection compares a token with later ones. In evaluation and decoding, causal blocks
take the tokens that a small predictor expects to be selected; it reads the router's input without passing
gradients to it, and is trained by binary cross-entropy (section 3.5, the second method). Blocks that see
both sides select by weight at all times.

A block sees its tokens as one shorter sequence: windows and convolutions count these tokens only. Rotary
positions are those of the full sequence.

Shapes: B batch, T length, D d_model, K tokens that the block processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, init_normal, linear_flops
from archbench.architectures.layers.block import Auxiliary, Block, BranchMaker, Mixer, Step, UnsupportedError
from archbench.architectures.layers.context import Context, restart
from archbench.architectures.layers.precise_linear import PreciseLinear

PREDICTOR_COEFFICIENT = 0.01
"""Weight of the loss of the predictor, which the paper does not give. It is small because gradients are
clipped by their common norm; the steps of Adam do not depend on it."""


class DepthRouter(nn.Module):
    """Weights of tokens, and which of them a block processes."""

    def __init__(self, d_model: int, capacity: float, *, causal: bool) -> None:
        """``capacity`` is the fraction of tokens; only the router of a ``causal`` block has a predictor."""
        super().__init__()
        self.capacity = Fraction(capacity).limit_denominator(10_000)
        self.score = PreciseLinear(d_model, 1, bias=False)
        hidden = max(1, d_model // 8)
        self.predictor = (
            nn.Sequential(PreciseLinear(d_model, hidden), nn.SiLU(), PreciseLinear(hidden, 1))
            if causal
            else None
        )
        init_normal(self)

    def count(self, length: int) -> int:
        """Return how many of ``length`` tokens are selected by weight, rounded down."""
        return length * self.capacity.numerator // self.capacity.denominator

    def highest(self, weight_BT: Tensor, context: Context) -> Tensor:
        """Return True (B, T) at the tokens with the highest weights of each sequence or packed document."""
        weight_BT = weight_BT.detach()
        if context.valid_BT is not None:
            weight_BT = weight_BT.masked_fill(~context.valid_BT, -torch.inf)
        length_BT = context.once("lengths of documents", context.length_BT)
        count_BT = length_BT * self.capacity.numerator // self.capacity.denominator
        order_BT = weight_BT.argsort(dim=1, descending=True, stable=True)
        if context.documents_BT is None:
            return order_BT.argsort(1) < count_BT
        index_1T = torch.arange(weight_BT.shape[1], device=weight_BT.device)[None]
        first_BT = index_1T - context.positions_BT
        order_BT = order_BT.gather(1, first_BT.gather(1, order_BT).argsort(dim=1, stable=True))
        selected_BT = order_BT.argsort(1) - first_BT < count_BT
        return selected_BT if context.valid_BT is None else selected_BT & context.valid_BT

    def expected(self, x_BTD: Tensor, valid_BT: Tensor | None) -> Tensor:
        """Return True (B, T) at the tokens that the predictor expects to be selected."""
        assert self.predictor is not None
        expected_BT = self.predictor(x_BTD)[..., 0] > 0
        return expected_BT if valid_BT is None else expected_BT & valid_BT

    def predictor_loss(self, x_BTD: Tensor, selected_BT: Tensor, valid_BT: Tensor | None) -> Tensor:
        """Return the mean cross-entropy of the tokens of each sequence, summed over sequences."""
        assert self.predictor is not None
        logit_BT = self.predictor(x_BTD.detach())[..., 0]
        nats_BT = F.binary_cross_entropy_with_logits(logit_BT, selected_BT.to(logit_BT), reduction="none")
        if valid_BT is None:
            return PREDICTOR_COEFFICIENT * nats_BT.mean(1).sum()
        return PREDICTOR_COEFFICIENT * ((nats_BT * valid_BT).sum(1) / valid_BT.sum(1).clamp_min(1)).sum()


@dataclass(kw_only=True)
class Selection:
    """The selected tokens of each row, in their order."""

    index_BK: Tensor
    """Their indices in the row. Rows with fewer than K tokens repeat the last index of the row."""
    kept_BK: Tensor
    """False at these repeated indices."""

    @classmethod
    def of(cls, selected_BT: Tensor, num_tokens: int) -> Selection:
        """Return the selection of the tokens where ``selected_BT`` is True, with K = ``num_tokens``."""
        order_BK = selected_BT.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :num_tokens]
        kept_BK = selected_BT.gather(1, order_BK)
        return cls(index_BK=order_BK.masked_fill(~kept_BK, selected_BT.shape[1] - 1), kept_BK=kept_BK)

    def gather(self, x_BTD: Tensor) -> Tensor:
        """Return the vectors (B, K, D) of the tokens."""
        return x_BTD.gather(1, self.index_BK[..., None].expand(-1, -1, x_BTD.shape[-1]))

    def add(self, x_BTD: Tensor, change_BKD: Tensor) -> Tensor:
        """Return ``x_BTD`` with a change added to each token."""
        change_BKD = torch.where(self.kept_BK[..., None], change_BKD, 0).to(x_BTD.dtype)
        return x_BTD.scatter_add(1, self.index_BK[..., None].expand_as(change_BKD), change_BKD)

    def rotary(self, context: Context) -> Tensor:
        """Return the positions (B, K) of the tokens in the full sequence."""
        positions_BT = context.positions_BT.expand(len(self.index_BK), -1)
        return positions_BT.gather(1, self.index_BK)

    def whole(self, context: Context, *, causal: bool) -> Context:
        """Return the context of the tokens as full sequences. In causal ones padding has no effect."""
        num_tokens = self.index_BK.shape[1]
        positions_BK = torch.arange(num_tokens, device=self.index_BK.device)[None]
        documents_BK = valid_BK = None
        if context.documents_BT is not None:
            documents_BK = context.documents_BT.gather(1, self.index_BK)
            positions_BK = restart(documents_BK, positions_BK)
        if not causal and (context.valid_BT is not None or documents_BK is not None):
            # Attention without any key is not defined: a row without tokens sees its first padding.
            valid_BK = self.kept_BK | (torch.arange(num_tokens, device=self.index_BK.device) == 0)
        return Context(
            positions_BT=positions_BK,
            valid_BT=valid_BK,
            documents_BT=documents_BK,
            rotary_BT=self.rotary(context),
            carried={name: self.gather(value) for name, value in context.carried.items()},
            carried_mirrored={name: self.gather(value) for name, value in context.carried_mirrored.items()},
        )

    def next(self, context: Context, lengths_B: Tensor) -> Context:
        """Return the context of the tokens that follow the first ``lengths_B`` of the block."""
        steps_K = torch.arange(self.index_BK.shape[1], device=lengths_B.device)
        return Context(
            positions_BT=lengths_B[:, None] + steps_K,
            valid_BT=self.kept_BK,
            start=None,
            rotary_BT=self.rotary(context),
            carried={name: self.gather(value) for name, value in context.carried.items()},
        )


class RoutedBlock(Block):
    """A block that processes the tokens that its router selects."""

    router: DepthRouter

    def add_router(self, d_model: int, capacity: float, *, causal: bool) -> None:
        """Add the router; drawn after all other layers, so that a seed gives them the same weights."""
        self.router = DepthRouter(d_model, capacity, causal=causal)

    def forward(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, Auxiliary]:
        causal = self.router.predictor is not None
        weight_BT = self.router.score(x_BTD)[..., 0]
        if causal and not self.training:
            selected_BT = self.router.expected(x_BTD, context.valid_BT)
            num_tokens = int(selected_BT.sum(1).max())
        else:
            selected_BT = self.router.highest(weight_BT, context)
            num_tokens = self.router.count(x_BTD.shape[1])
        y_BTD = x_BTD
        auxiliary: Auxiliary = {}
        if num_tokens > 0:
            selection = Selection.of(selected_BT, num_tokens)
            read_BKD, inner = selection.gather(x_BTD), selection.whole(context, causal=causal)
            z_BKD, auxiliary = super().forward(read_BKD, inner)
            weight_BK = weight_BT.gather(1, selection.index_BK)
            y_BTD = selection.add(x_BTD, weight_BK[..., None] * (z_BKD - read_BKD))
        if causal and self.training:
            loss = self.router.predictor_loss(x_BTD, selected_BT, context.valid_BT)
            auxiliary = {**auxiliary, "depth_predictor": loss}
        return y_BTD, auxiliary

    def start(self, batch_size: int, max_length: int) -> Any:
        """Return an empty state: that of the block, with space for all tokens, and the tokens in it."""
        lengths_B = torch.zeros(batch_size, dtype=torch.int64, device=self.router.score.weight.device)
        return {"block": super().start(batch_size, max_length), "lengths": lengths_B}

    def step(self, x_BTD: Tensor, state: Any, context: Context) -> Tensor:
        selected_BT = self.router.expected(x_BTD, context.valid_BT)
        count_B = selected_BT.sum(1)
        num_tokens = int(count_B.max())
        if num_tokens == 0:
            return x_BTD
        selection = Selection.of(selected_BT, num_tokens)
        read_BKD, inner = selection.gather(x_BTD), selection.next(context, state["lengths"])
        z_BKD = super().step(read_BKD, state["block"], inner)
        state["lengths"] += count_B
        weight_BK1 = self.router.score(read_BKD)
        return selection.add(x_BTD, weight_BK1 * (z_BKD - read_BKD))

    def decode_step(self, maker: BranchMaker) -> Step:
        raise UnsupportedError("a mixture of depths")

    def flops(self, length: int) -> Flops:
        """Return the FLOPs of training, and of evaluation where the predictor is right about the capacity."""
        total = Flops(linear=linear_flops(self.router, length))
        count = self.router.count(length)
        return total + super().flops(count) if count > 0 else total

    def step_flops(self, length: int) -> Flops:
        """Return the mean of tokens that are processed and others, by the capacity."""
        step = super().step_flops(self.router.count(length))
        mean = (self.router.count(part) for part in (step.linear, step.attention, step.mixer))
        linear, attention, mixer = mean
        return Flops(linear=linear + linear_flops(self.router, 1), attention=attention, mixer=mixer)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """Return the bytes reserved: the predictor may select all tokens."""
        return super().state_bytes(length, bytes_per_element) + torch.int64.itemsize


def check_carried(blocks: Sequence[Block]) -> None:
    """Raise ValueError where layers would read values that only some tokens have."""
    layers: dict[str, list[int]] = {}
    for index, block in enumerate(blocks):
        names = {part.carries for part in block.mixer.modules() if isinstance(part, Mixer)}
        for name in names - {""}:
            layers.setdefault(name, []).append(index)
    for name, (first, *readers) in layers.items():
        if readers and isinstance(blocks[first], RoutedBlock):
            raise ValueError(
                f"mixture_of_depths: layer {readers[0] + 1} reads the {name} of layer {first + 1}, which "
                "processes only some tokens, as all even layers do: put the first layer of this type at an "
                "odd place, such as layer 1, or set its value_residual=false"
            )
