"""How the costs of the recurrent families grow: training with the length, decoding with the context.

Training is forward and backward of one mixer; the exponent is the slope of a straight line through
the logarithms of the medians. Decoding is one token through a stack of layers, embedding and head
included. Lengths and contexts take turns, so that a drift of the machine falls on all of them.

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from machine import Page, as_markdown
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.linear_attention import GLA, DeltaNet, DeltaNetConfig, GLAConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.backbones.stack import Stack, StackConfig
from archbench.architectures.decoding_state import DecodingState
from archbench.architectures.layers.context import Context

GROWTH_LENGTHS = (512, 1024, 2048, 4096, 8192)
CONTEXTS = (512, 2048, 8192, 32768)
FAMILIES: dict[str, tuple[type[Stack], type[StackConfig]]] = {
    "mamba": (Mamba, MambaConfig),
    "mamba2": (Mamba2, Mamba2Config),
    "gla": (GLA, GLAConfig),
    "deltanet": (DeltaNet, DeltaNetConfig),
    "s4": (S4, S4Config),
    "decoder": (Decoder, DecoderConfig),
}
"""Models to measure; the decoder grows, and is included for comparison."""
BATCH, LAYERS, VOCABULARY = 2, 4, 256
TOKENS, ROUNDS, PIECE = 8, 12, 512
"""Tokens decoded in a turn; turns of each context, the first of which is not counted; tokens of a prompt
read at once."""


def report_growth(
    page: Page,
    kinds: Sequence[str] | None,
    lengths: Sequence[int],
    contexts: Sequence[int],
    d_model: int,
    repeats: int,
) -> None:
    """Measure and print both tables."""
    chosen = list(kinds or FAMILIES)
    rows = [training_row(kind, d_model, lengths, repeats) for kind in chosen]
    page.note("exponents", {row[0]: float(row[-2]) for row in rows})
    page.say(
        f"Training: milliseconds of forward and backward of one mixer, d_model {d_model}, "
        f"batch {BATCH}, float32. The exponent is that of T; goal at most 1.05 for all but the decoder."
    )
    columns = ("layer", *(f"T = {length}" for length in lengths), "exponent", "of the last doubling")
    page.say(as_markdown(columns, rows))
    page.say(
        f"Decoding: milliseconds of one token, {LAYERS} layers, d_model {d_model}, batch 1, float32. "
        "The deviation is the largest from the mean over the contexts; goal 5% for all but the decoder."
    )
    columns = ("backbone", *(f"after {context}" for context in contexts), "largest deviation")
    rows = [decoding_row(kind, d_model, contexts) for kind in chosen]
    page.note("deviations", {row[0]: float(row[-1].rstrip("%")) / 100 for row in rows})
    page.say(as_markdown(columns, rows))


def build(kind: str, d_model: int, num_layers: int, max_length: int) -> Stack:
    cls, config = FAMILIES[kind]
    torch.manual_seed(0)
    return cls(config(d_model=d_model, num_layers=num_layers), vocab_size=VOCABULARY, max_length=max_length)


def training_row(kind: str, d_model: int, lengths: Sequence[int], repeats: int) -> list[str]:
    model = build(kind, d_model, 1, max(lengths))
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for turn in range(repeats + 1):
        for length in lengths:
            seconds = time_mixer(model, length, d_model)
            if turn > 0:
                times[length].append(seconds)
    medians = [statistics.median(times[length]) for length in lengths]
    last_exponent = exponent(lengths[-2:], medians[-2:])
    cells = [f"{1000 * median:.1f}" for median in medians]
    return [kind, *cells, f"{exponent(lengths, medians):.3f}", f"{last_exponent:.3f}"]


def time_mixer(model: Stack, length: int, d_model: int) -> float:
    """Seconds of forward and backward of the first mixer."""
    context = Context(positions_BT=torch.arange(length)[None])
    x_BTD = torch.randn(BATCH, length, d_model, requires_grad=True)
    mixer = model.blocks[0].mixer
    model.zero_grad()
    begin = time.perf_counter()
    mixer(x_BTD, context).sum().backward()  # type: ignore[operator]
    return time.perf_counter() - begin


def exponent(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The power of the length that the seconds follow, by least squares of their logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(seconds), 1)[0])


def decoding_row(kind: str, d_model: int, contexts: Sequence[int]) -> list[str]:
    max_length = max(contexts) + TOKENS * ROUNDS
    model = build(kind, d_model, LAYERS, max_length).eval()
    states = {context: read(model, context, context + TOKENS * ROUNDS) for context in contexts}
    times: dict[int, list[float]] = {context: [] for context in contexts}
    token_B1 = torch.zeros(1, 1, dtype=torch.long)
    for turn in range(ROUNDS):
        for context, state in states.items():
            seconds = [time_step(model, token_B1, state) for _ in range(TOKENS)]
            if turn > 0:
                times[context] += seconds[1:]  # the state of the first is not in the processor's cache
    medians = [statistics.median(times[context]) for context in contexts]
    mean = statistics.mean(medians)
    deviation = max(abs(median / mean - 1) for median in medians)
    return [kind, *(f"{1000 * median:.3f}" for median in medians), f"{deviation:.1%}"]


def read(model: Backbone, context: int, max_length: int) -> DecodingState:
    """The state after ``context`` tokens."""
    state = model.start(1, max_length)
    for tokens_BT in torch.randint(VOCABULARY, (1, context)).split(PIECE, dim=1):
        model.step(tokens_BT, state)
    return state


def time_step(model: Backbone, token_B1: Tensor, state: DecodingState) -> float:
    begin = time.perf_counter()
    model.step(token_B1, state)
    return time.perf_counter() - begin
