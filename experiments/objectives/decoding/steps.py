"""The steps of ``generate``, from a token to the next logits: ``Backbone.step``, or a CUDA graph of one.

Shapes: B rows at the beginning, N rows that go on, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from architectures.backbone import Backbone, DecodingState
from architectures.kernels import pointwise
from experiments.objectives.decoding.static_decoder import StaticDecoder, problem

FEWEST = 32
"""Tokens from which on a graph is captured: capturing costs the time of a few steps."""


class Steps:
    """Steps of the backbone. Rows that have ended leave the decoding state."""

    def __init__(self, model: Backbone, state: DecodingState) -> None:
        self._model, self._state = model, state

    def select(self, rows: list[int]) -> None:
        """Go on with these of the rows that go on so far, in their order."""
        self._state.select(rows)

    def __call__(self, token_N: Tensor) -> Tensor:
        """Return logits (N, V) after one more token of every row."""
        return self._model.step(token_N[:, None], self._state)[:, -1]


class StaticSteps(Steps):
    """Steps of fixed shapes. Rows that have ended stay in the batch, but their tokens are ignored."""

    def __init__(self, decoder: StaticDecoder) -> None:
        self._decoder = decoder
        self._row_N = torch.arange(len(decoder.token_B1), device=decoder.token_B1.device)

    def select(self, rows: list[int]) -> None:
        self._row_N = self._row_N[rows]

    def __call__(self, token_N: Tensor) -> Tensor:
        """Return logits (N, V) after one more token of every row."""
        token_B1 = self._decoder.token_B1.index_copy(0, self._row_N, token_N[:, None])
        return self._decoder(token_B1)[self._row_N, -1]


def make_steps(model: Backbone, state: DecodingState, tokens: int) -> Steps:
    """Return the steps by which up to ``tokens`` more are decoded; ``state`` must not be used afterwards.

    A CUDA graph, for a model on a GPU that one process decodes, where a step has fixed shapes
    (``static_decoder.problem``) and there are many tokens; else those of the backbone. Both give the same
    logits up to rounding. ``device.kernels=torch`` disables graphs.
    """
    if tokens < FEWEST or not captures(next(model.parameters()).device) or problem(model, state):
        return Steps(model, state)
    decoder = StaticDecoder(model, state, tokens)
    decoder.capture()
    return StaticSteps(decoder)


def captures(device: torch.device) -> bool:
    """Return True where steps on this device may be captured: on a GPU, and not between processes."""
    shared = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return device.type == "cuda" and not shared and pointwise.chosen() != "torch"
