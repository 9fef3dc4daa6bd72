"""Checks that what a model returns is finite: the argmax of NaN is a token, and its accuracy a number.

Shapes: B batch, T length, V vocabulary; X any leading shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from archbench.architectures.backbone import Output
from archbench.experiments.runtime.errors import DivergedError

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
        self._good: Tensor | None = None

    @property
    def found(self) -> bool:
        """True if logits or a readout were not finite, at a position that is no padding."""
        return self._good is not None and not bool(self._good)

    def note(
        self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], out: object
    ) -> None:
        """Check the output of a forward pass; a forward hook."""
        if not isinstance(out, Output):
            return
        valid_BT = kwargs.get("valid_BT")
        good = self._finite(out.logits_BTV.detach().amax(-1), valid_BT)
        if out.readout is not None:
            largest_X = out.readout.detach().abs().amax(-1) if out.readout.shape[-1] else out.readout
            good = good & self._finite(largest_X, valid_BT)
        self._good = good if self._good is None else self._good & good

    @staticmethod
    def _finite(largest_X: Tensor, valid_BT: object) -> Tensor:
        """Return a scalar: True if all values are finite where there is no padding."""
        good_X = largest_X.isfinite()
        if isinstance(valid_BT, Tensor) and valid_BT.shape == good_X.shape:
            good_X = good_X | ~valid_BT
        return good_X.all()


@contextmanager
def watched_outputs(model: nn.Module) -> Iterator[OutputWatcher]:
    """Watch the forward passes of a model in the block."""
    watcher = OutputWatcher()
    hook = model.register_forward_hook(watcher.note, with_kwargs=True)
    try:
        yield watcher
    finally:
        hook.remove()
