"""Decoding in bfloat16: milliseconds for each token, and the bytes it must read.

A token reads every weight once, and the decoding state of every sequence. Two ways: ``Backbone.step``, launch
by launch, and a step of fixed shapes recorded as a CUDA graph (on a CPU the same step, not recorded). Its
logits are first compared with those of the other.

Shapes: B batch, T length.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from gpu_train import SIZES, TINY, Size, maker
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.decoding_state import DecodingState
from archbench.experiments.benchmark.timing import Stopwatch
from archbench.experiments.objectives.decoding.steps import StaticDecoder

FAMILIES = ("decoder", "mamba", "mamba2")
BATCHES = (1, 8, 64)
LIMIT = 0.1
"""Largest difference of the logits of both ways, as a share of the largest: bfloat16 has 8 bits."""
CHECKED = 4
"""Number of tokens with compared logits."""


def decode_cells(device: torch.device, tiny: bool) -> Iterator[Any]:
    """Each family at each batch size, both ways."""
    size = TINY[0] if tiny else SIZES[1]
    context, tokens = (8, 3) if tiny else (1024, 48)
    for family in FAMILIES:
        for batch in BATCHES:
            for way in ("eager", "graph" if device.type == "cuda" else "fixed shapes"):
                about = {"family": family, "size": size.name, "batch": batch, "way": way}
                cell_args = (family, size, batch, way, context, tokens)
                yield about, lambda cell_args=cell_args: measure(*cell_args, device)


def measure(
    family: str, size: Size, batch: int, way: str, context: int, tokens: int, device: torch.device
) -> dict[str, Any]:
    """Seconds of a token of every sequence, after ``context`` tokens, and the bytes it must read."""
    max_length = context + 2 * tokens + CHECKED
    with torch.device(device):
        model = maker(family, size, max_length)().bfloat16().eval()
    with torch.inference_mode():
        prompt_1T = torch.randint(size.vocab, (1, context), device=device)
        token_B1 = torch.randint(size.vocab, (batch, 1), device=device)
        state = prepared(model, prompt_1T, batch, max_length)
        result: dict[str, Any] = {}
        if way == "eager":

            def step() -> Tensor:
                return model.step(token_B1, state)
        else:
            fixed = StaticDecoder(model, state, max_length - context)
            if device.type == "cuda":
                fixed.capture()
            result["difference"] = differs(
                model, fixed, prepared(model, prompt_1T, batch, max_length), token_B1
            )

            def step() -> Tensor:
                return fixed(token_B1)

        watch = Stopwatch(device)
        watch.repeat(step, tokens)
        seconds = statistics.median(watch.repeat(step, tokens))
    parts = model.parameters_by_part()
    weights = 2 * (parts.total - parts.embedding)  # a row of the embedding is negligible
    return result | {
        "seconds": seconds,
        "ms_per_token": 1000 * seconds,
        "tokens_per_second": batch / seconds,
        "bytes": weights + batch * model.state_bytes(context + tokens),
    }


def prepared(model: Backbone, prompt_1T: Tensor, batch: int, max_length: int) -> DecodingState:
    """The state of ``batch`` sequences with the same prompt."""
    state = model.start(1, max_length)
    for piece_1P in prompt_1T.split(256, dim=1):
        model.step(piece_1P, state)
    state.select([0] * batch)
    return state


def differs(model: Backbone, fixed: StaticDecoder, state: DecodingState, token_B1: Tensor) -> float:
    """Difference of the logits of fixed shapes from those of ``step``.

    Raises ValueError if it is too large.
    """
    worst = 0.0
    for _ in range(CHECKED):
        expected_B1V, found_B1V = model.step(token_B1, state).float(), fixed(token_B1).float()
        worst = max(worst, ((found_B1V - expected_B1V).abs().max() / expected_B1V.abs().max()).item())
    if worst > LIMIT:
        raise ValueError(f"logits of fixed shapes differ by {worst:.1e}, allowed {LIMIT:.0e}")
    return worst
