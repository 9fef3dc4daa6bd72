"""The short causal depthwise convolution of Mamba, and its window for decoding.

Shapes: B batch, T length, C channels, K taps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.fast_paths import kernel
from archbench.architectures.layers.canon import window_after
from archbench.architectures.layers.context import Context


class CausalConvolution(nn.Module):
    """Depthwise convolution: each channel has K taps over the current and the K - 1 previous inputs."""

    def __init__(self, channels: int, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight_CK = nn.Parameter(torch.empty(channels, width))
        self.bias_C = nn.Parameter(torch.zeros(channels)) if bias else None
        self.width = width

    def forward(
        self, x_BTC: Tensor, window_BKC: Tensor | None = None, *, positions_BT: Tensor | None = None
    ) -> Tensor:
        """The filtered sequence.

        Args:
            window_BKC: the K - 1 inputs before it; zeros if None.
            positions_BT: for packed documents, the position of each token in its document: inputs
                before a document count as zeros.
        """
        if positions_BT is not None:
            assert window_BKC is None
            return self._packed(x_BTC, positions_BT)
        if window_BKC is None:
            padded = F.pad(x_BTC, (0, 0, self.width - 1, 0))
        else:
            padded = torch.cat([window_BKC.to(x_BTC.dtype), x_BTC], dim=1)
        y_BCT = F.conv1d(padded.transpose(1, 2), self.weight_CK[:, None], self.bias_C, groups=x_BTC.shape[-1])
        return y_BCT.transpose(1, 2)

    def activated(
        self,
        x_BTC: Tensor,
        window_BKC: Tensor | None = None,
        *,
        positions_BT: Tensor | None = None,
        path: str = "torch",
    ) -> Tensor:
        """SiLU of the filtered sequence; the arguments are those of ``forward``.

        ``path`` is that of the scan which follows: ``cpp`` is one pass in C++ on a CPU, ``mamba_ssm`` the
        kernel of causal-conv1d. What continues a window is filtered by PyTorch on every path.
        """
        if window_BKC is None and path in ("cpp", "mamba_ssm"):
            y_BTC: Tensor = kernel("convolution", path)(x_BTC, self.weight_CK, self.bias_C, positions_BT)
            return y_BTC
        return F.silu(self.forward(x_BTC, window_BKC, positions_BT=positions_BT))

    def _packed(self, x_BTC: Tensor, positions_BT: Tensor) -> Tensor:
        """Tap by tap, each where it stays inside the document."""
        y_BTC = x_BTC * self.weight_CK[:, -1]
        for lag in range(1, self.width):
            earlier_BTC = F.pad(x_BTC, (0, 0, lag, 0))[:, : x_BTC.shape[1]]
            inside_BT1 = (positions_BT >= lag)[..., None]
            y_BTC = y_BTC + earlier_BTC * inside_BT1 * self.weight_CK[:, -1 - lag]
        return y_BTC if self.bias_C is None else y_BTC + self.bias_C

    def start(self, batch_size: int) -> Tensor:
        """An empty window (B, K - 1, C)."""
        return self.weight_CK.new_zeros(batch_size, self.width - 1, self.weight_CK.shape[0])

    def after(
        self, x_BTC: Tensor, window_BKC: Tensor | None = None, valid_BT: Tensor | None = None
    ) -> Tensor:
        """The window (B, K - 1, C) after each row's valid inputs; ``window_BKC`` as in ``forward``."""
        length, window = x_BTC.shape[1], self.width - 1
        if valid_BT is None and length >= window:
            return x_BTC[:, length - window :]
        if window_BKC is None:
            window_BKC = x_BTC.new_zeros(x_BTC.shape[0], window, x_BTC.shape[2])
        return window_after(torch.cat([window_BKC.to(x_BTC.dtype), x_BTC], dim=1), window, valid_BT)

    @torch.no_grad()
    def step(self, x_BTC: Tensor, window_BKC: Tensor, valid_BT: Tensor | None = None) -> Tensor:
        """The filtered next inputs; the window advances in place, by each row's valid inputs."""
        y_BTC = self.forward(x_BTC, window_BKC)
        window_BKC.copy_(self.after(x_BTC, window_BKC, valid_BT))
        return y_BTC

    def flops(self, length: int) -> int:
        return 2 * length * self.weight_CK.numel()

    @torch.no_grad()
    def initialise(self) -> None:
        # What nn.Conv1d does for K inputs to each output.
        for parameter in (self.weight_CK, self.bias_C):
            if parameter is not None:
                parameter.uniform_(-(self.width**-0.5), self.width**-0.5)


def convolved(
    convolution: CausalConvolution | None,
    x_BTC: Tensor,
    state: dict[str, Tensor] | None,
    context: Context,
    path: str,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return SiLU of the convolution of ``x``, and the ``window`` after it; for None, SiLU of ``x`` alone.

    Args:
        state: has the ``window`` before ``x``; None for a full sequence.
        path: as in ``CausalConvolution.activated``.
    """
    if convolution is None:
        return F.silu(x_BTC), {}
    window_BKC = None if state is None else state["window"]
    positions_BT = None if context.documents_BT is None else context.positions_BT
    y_BTC = convolution.activated(x_BTC, window_BKC, positions_BT=positions_BT, path=path)
    return y_BTC, {"window": convolution.after(x_BTC, window_BKC, context.valid_BT)}
