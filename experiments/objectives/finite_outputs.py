"""Checks that what a model returns is finite: the argmax of NaN is a token, and its accuracy a number.

Shapes: B batch, T length, V vocabulary; X any leading shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from architectures.backbone import Output
from experiments.runtime.errors import DivergedError

CAUSE = "lower the learning rate, or look at what the model does in evaluation"


def check_logits(logits_XV: Tensor) -> Tensor:
    """Return the logits of tokens that are chosen.

    Single logits may be -inf, which is a probability of 0.

    Raises:
        DivergedError: the logits of a position are no distribution: NaN, +inf, or -inf for all tokens.
    """
    if not logits_XV.amax(-1).isfinite().all():
        raise DivergedError(f"logits that choose a token are not finite numbers; {CAUSE}")
    return logits_XV


class OutputWatcher:
    """Notes whether a model has returned values that are not finite, without waiting for its device."""

    def __init__(self) -> None:
        self._bad: Tensor | None = None

    @property
    def found(self) -> bool:
        """True if logits or a readout were not finite, at a position that is no padding."""
        return self._bad is not None and bool(self._bad)

    def note(
        self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], out: object
    ) -> None:
        """Check the output of a forward pass; a forward hook."""
        if not isinstance(out, Output):
            return
        valid_BT = kwargs.get("valid_BT")
        bad = self._missing(out.logits_BTV.detach().amax(-1), valid_BT)
        if out.readout is not None:
            largest_X = out.readout.detach().abs().amax(-1) if out.readout.shape[-1] else out.readout
            bad = bad | self._missing(largest_X, valid_BT)
        self._bad = bad if self._bad is None else self._bad | bad

    @staticmethod
    def _missing(largest_X: Tensor, valid_BT: object) -> Tensor:
        """Return a scalar: True if a value is not finite where there is no padding."""
        bad_X = ~largest_X.isfinite()
        if isinstance(valid_BT, Tensor) and valid_BT.shape == bad_X.shape:
            bad_X = bad_X & valid_BT
        return bad_X.any()


@contextmanager
def watched_outputs(model: nn.Module) -> Iterator[OutputWatcher]:
    """Watch the forward passes of a model in the block."""
    watcher = OutputWatcher()
    hook = model.register_forward_hook(watcher.note, with_kwargs=True)
    try:
        yield watcher
    finally:
        hook.remove()
