"""Routing of experts as if it were even, so that the shapes of a step do not depend on its data.

Which experts tokens go to is known only once the router has run. Where tensors have no values, each expert is
taken to receive equally many tokens, which is also what the balance loss works for.

Shapes: M pairs of a token and an expert, sorted by expert, D d_model, X experts, P processes, L = X / P
experts of one process.
"""

from __future__ import annotations

from torch import Tensor, nn

from archbench.architectures.layers.moe.dispatch import Weights, run_loop
from archbench.architectures.layers.moe.expert_parallel import Exchange
from archbench.architectures.layers.moe.experts import Experts


def route_evenly(model: nn.Module) -> None:
    """Give each expert of a model equally many tokens, regardless of its router."""
    for layer in (part for part in model.modules() if isinstance(part, Experts)):
        if layer.exchange is None:
            layer.exchange = lambda run: _run_evenly
        elif isinstance(layer.exchange, Exchange):
            exchange = _EvenExchange(layer.exchange.group)
            layer.exchange = lambda run, exchange=exchange: exchange(_run_evenly)


class _EvenExchange(Exchange):
    """Sends each process equally many tokens."""

    def sizes(self, sent_PL: Tensor, received_PL: Tensor, pairs: int) -> tuple[list[int], list[int]]:
        even = _shares(pairs, len(sent_PL))
        return even, even


class _Counts(list[int]):
    """Numbers of tokens that are known without a tensor."""

    def tolist(self) -> list[int]:
        """Return the numbers, as a tensor would."""
        return list(self)


def _run_evenly(x_MD: Tensor, counts_X: Tensor, weights: Weights) -> Tensor:
    """Run one expert after another on its share, as ``run_loop`` does on what it is sent."""
    return run_loop(x_MD, _Counts(_shares(len(x_MD), len(weights.up_XFD))), weights)  # type: ignore[arg-type]


def _shares(count: int, parts: int) -> list[int]:
    """Return a number in parts that differ by one at most."""
    return [count // parts + (part < count % parts) for part in range(parts)]
