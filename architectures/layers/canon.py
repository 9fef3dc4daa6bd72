"""Canon layers: short depthwise convolutions with a residual connection.

Allen-Zhu 2025, "Physics of Language Models: Part 4.1" (https://ssrn.com/abstract=5240330): each channel
becomes ``h_t + sum of w_i h_{t-i}`` over the current and the 3 previous tokens, at up to four positions of a
block. A: the input of the mixer, after its norm. B: the projected inputs of the mixer. C: the input of the
feed-forward, after its norm. D: the hidden layer of the feed-forward, before its activation.

Shapes: B batch, T length, C channels, K taps, W = K - 1 inputs of a window.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.fast_paths import kernel, uses_cpp
from archbench.architectures.layers.context import Context

KERNEL = 4
"""Taps of a causal layer: the current and the 3 previous tokens."""
LETTERS = "ABCD"


class Canon(nn.Conv1d):
    """``x + convolution(x)``, over previous tokens, or over as many previous as later ones.

    The weights are initialised as those of ``nn.Conv1d``, uniform up to 1 / sqrt(K), as in the authors' code.
    """

    def __init__(self, channels: int, *, causal: bool) -> None:
        """A layer that is not ``causal`` has 7 taps, with the current token in the middle."""
        self.lookahead = 0 if causal else KERNEL - 1
        super().__init__(channels, channels, KERNEL + self.lookahead, groups=channels, bias=False)
        self.path = ""
        """Name of the layer in its block, and of its window in ``Context.windows``."""

    def forward(self, x_BTC: Tensor, context: Context) -> Tensor:  # type: ignore[override]
        if context.windows is not None:
            return self._continued(x_BTC, context.windows[self.path], context.valid_BT)
        documents = context.documents_BT is not None or context.lengths is not None
        weight_C1K = self.weight_C1K()
        if not self.lookahead and uses_cpp("scan", x_BTC, weight_C1K):
            positions_BT = context.positions_BT if documents else None
            return kernel("convolution")(x_BTC, weight_C1K[:, 0], None, positions_BT, then="add")
        read_BTC = x_BTC
        if self.lookahead and context.valid_BT is not None:
            read_BTC = x_BTC * context.valid_BT[..., None]
        if documents:
            return x_BTC + self._within_documents(read_BTC, context.positions_BT)
        return x_BTC + self._convolved(F.pad(read_BTC, (0, 0, KERNEL - 1, self.lookahead)))

    def weight_C1K(self) -> Tensor:
        """Return the weights of the channels of this process."""
        return self.weight.to_local() if hasattr(self.weight, "to_local") else self.weight

    def _convolved(self, padded_BJC: Tensor) -> Tensor:
        channels = padded_BJC.shape[-1]
        return F.conv1d(padded_BJC.transpose(1, 2), self.weight_C1K(), groups=channels).transpose(1, 2)

    def _within_documents(self, x_BTC: Tensor, positions_BT: Tensor) -> Tensor:
        """Convolve tap by tap, each where it stays inside the document: where positions count on."""
        y_BTC = torch.zeros_like(x_BTC)
        for tap, weight_C in enumerate(self.weight_C1K()[:, 0].unbind(1)):
            offset = tap - (KERNEL - 1)
            read_BT = shifted(positions_BT[..., None], offset, fill=-KERNEL)[..., 0]
            inside_BT1 = (read_BT == positions_BT + offset)[..., None]
            y_BTC = y_BTC + shifted(x_BTC, offset) * inside_BT1 * weight_C.to(x_BTC.dtype)
        return y_BTC

    def start(self, batch_size: int) -> Tensor:
        """Return the window (B, W, C) before the first token."""
        weight_C1K = self.weight_C1K()
        return weight_C1K.new_zeros(batch_size, KERNEL - 1, len(weight_C1K))

    def window_bytes(self, bytes_per_element: int) -> int:
        """Return the bytes of the window of one sequence."""
        return (KERNEL - 1) * self.out_channels * bytes_per_element

    def _continued(self, x_BTC: Tensor, window_BWC: Tensor, valid_BT: Tensor | None) -> Tensor:
        """Return the output for the inputs after a window, which advances in place."""
        seen_BJC = torch.cat([window_BWC.to(x_BTC.dtype), x_BTC], dim=1)
        window_BWC.copy_(window_after(seen_BJC, KERNEL - 1, valid_BT))
        return x_BTC + self._convolved(seen_BJC)


def check_letters(letters: str | None) -> None:
    """Raise ValueError for letters that do not name positions."""
    if letters is not None and (not letters or "".join(x for x in LETTERS if x in letters) != letters):
        raise ValueError(
            f"canon={letters!r} must be letters of {LETTERS} in this order, such as ABCD or AC, or null"
        )


def window_after(seen_BJC: Tensor, window: int, valid_BT: Tensor | None) -> Tensor:
    """Return the last ``window`` of the inputs (B, J, C) up to each row's last valid one.

    The first ``window`` inputs are those of the window before; ``valid_BT`` is about all that follow.
    """
    if valid_BT is None:
        return seen_BJC[:, seen_BJC.shape[1] - window :]
    last_BK = valid_BT.sum(1, keepdim=True) + torch.arange(window, device=seen_BJC.device)
    return seen_BJC.gather(1, last_BK[..., None].expand(-1, -1, seen_BJC.shape[2]))


def shifted(x_BTC: Tensor, offset: int, fill: float = 0) -> Tensor:
    """Return at each position what is ``offset`` positions after it; ``fill`` beyond the ends."""
    length = x_BTC.shape[1]
    padded_BJC = F.pad(x_BTC, (0, 0, max(-offset, 0), max(offset, 0)), value=fill)
    return padded_BJC[:, max(offset, 0) :][:, :length]


def filtered(layer: nn.Module, name: str, x_BTC: Tensor, context: Context | None) -> Tensor:
    """Return ``x`` after the canon layer ``layer.canon[name]``, where there is one."""
    canon = layer.canon
    assert isinstance(canon, nn.ModuleDict)
    return canon[name](x_BTC, context) if name in canon else x_BTC
