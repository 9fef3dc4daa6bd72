"""The selective scan through torch.compile: a few unrolled steps become one kernel.

The first call takes some 20 seconds to compile and needs a C++ compiler; after
that it is several times as fast on a CPU as the portable path.

Shapes: B batch, T length, C channels, N state size of a channel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 16
"""Steps in one compiled kernel. Fewer pass more states through memory, more take longer to compile."""


def scan_compiled(
    u_BTC: Tensor,
    delta_BTC: Tensor,
    A_CN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    h_BCN: Tensor,
    keep_BT: Tensor | None,
    negative: bool,
) -> tuple[Tensor, Tensor]:
    """See ``selective_scan``; ``keep_BT`` is 0 where the state before the step is forgotten, else 1."""
    length = u_BTC.shape[1]
    missing = -length % STEPS
    # A time step of zero leaves the state as it is. Splitting once, not slicing each piece, spares the
    # backward pass a gradient of full size for each of them.
    pieces = [F.pad(x, (0, 0, 0, missing)).split(STEPS, dim=1) for x in (u_BTC, delta_BTC, B_BTN, C_BTN)]
    kept: list[Tensor | None] = [None] * len(pieces[0])
    if keep_BT is not None:
        kept = list(F.pad(keep_BT, (0, missing), value=1.0).split(STEPS, dim=1))
    outputs = []
    for u, delta, B, C, keep in zip(*pieces, kept, strict=True):
        y, h_BCN = _kernel()(u, delta, A_CN, B, C, h_BCN, keep, negative)
        outputs.append(y)
    return torch.cat(outputs, dim=1)[:, :length], h_BCN


@functools.cache
def _kernel() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_steps, dynamic=False)


def _steps(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, keep: Tensor | None, negative: bool
) -> tuple[Tensor, Tensor]:
    """The plain loop over so many steps."""
    outputs = []
    for t in range(STEPS):
        decay = (delta[:, t, :, None] * A).exp()
        if negative:
            decay = 2 * decay - 1
        if keep is not None:
            decay = decay * keep[:, t, None, None]
        h = decay * h + (delta[:, t] * u[:, t])[..., None] * B[:, t, None, :]
        outputs.append((h * C[:, t, None, :]).sum(-1))
    return torch.stack(outputs, dim=1), h
