"""The timed workloads of a benchmark: training steps, prefill, decoding of single tokens.

A training step is forward, backward, clipping and AdamW on random tokens, every position scored; of a model
that works block by block it reads each sequence twice, noisy and clean, as in training. Prefill reads a
prompt into an empty decoding state. Decoding reads one more token after a context, no sampling and no text
around it. All run as the harness runs them: eagerly, in the precision of ``device``, with float32 weights.

Shapes: B batch, T length, S length of the source, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.decoding_state import DecodingState
from archbench.architectures.layers.cross_entropy import cross_entropy
from archbench.architectures.layers.decode_steps import ROWS
from archbench.experiments.benchmark.timing import Stopwatch, is_stable
from archbench.experiments.runtime.device import autocast, inference
from archbench.experiments.training.optimizers.adamw import AdamW

MODES = ("train", "prefill", "decode", "sample")
APPROACH = 64
"""Tokens before the context that are read one at a time: the warm-up of decoding."""


@dataclass(frozen=True, kw_only=True)
class CellConfig:
    """Settings of the measurement of one process."""

    mode: str
    """One of ``MODES``."""
    context: int
    """Tokens of a training sequence or a prompt; tokens read before the first one that is decoded; tokens of
    a text that is filled in."""
    batch_size: int
    """Sequences side by side."""
    source_length: int
    """Tokens an encoder-decoder reads; 0 for all other models."""
    vocab_size: int
    """Rows of the token table."""
    max_length: int
    """Longest sequence the model is built for."""
    repeats: int
    """Repetitions timed at least."""
    seconds: float
    """Seconds timed at least."""
    warmup_seconds: float
    """Seconds after which the warm-up ends, stable or not."""
    decode_tokens: int
    """Tokens decoded and timed, one by one."""
    piece: int
    """Tokens of a prompt read at once at most."""
    steps: int | None = None
    """Denoising steps of a text that is filled in; None in other modes."""
    memory_limit: int | None = None
    """Bytes that model and work may take; None for all there are."""
    trial: bool = False
    """Only find out whether it fits: no warm-up and as few repetitions as show it."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Times of one repetition, and what a repetition does."""

    times: list[float]
    """Seconds of each repetition."""
    warmup: list[float]
    """Seconds of each repetition of the warm-up."""
    stable: bool
    """Whether the times of the warm-up stood still at its end."""
    tokens: int
    """Tokens of one repetition, over the full batch."""
    flops: float
    """FLOPs of one repetition by the backbone's formula, the mean over the repetitions."""
    least_bytes: int
    """Bytes that one repetition moves at least: in each pass the weights, and what is decoded from."""
    state_bytes: int | None = None
    """Bytes of the decoding state, as stored in memory at the end."""
    state_formula_bytes: int | None = None
    """The same by the backbone's formula."""
    passes: int | None = None
    """Forward passes of one repetition, where a text is filled in."""


class Cell:
    """A model and what is done with it."""

    def __init__(self, model: Backbone, cell: CellConfig, device: torch.device, precision: str) -> None:
        self.model, self.cell, self.device, self.precision = model, cell, device, precision
        self.watch = Stopwatch(device)
        self.source_BS = self._tokens(cell.source_length) if cell.source_length else None

    def measure(self) -> Measured:
        """Times ``mode``, except ``sample``: ``experiments.benchmark.infilling`` times that."""
        if self.cell.mode == "train":
            return self.train()
        with inference(self.model, self.device, self.precision):
            return self.prefill() if self.cell.mode == "prefill" else self.decode()

    def train(self) -> Measured:
        """Training steps."""
        cell, model = self.cell, self.model.train()
        tokens_BT, target_BT = self._tokens(cell.context), self._tokens(cell.context)
        inputs, copies = {"source_BS": self.source_BS}, 1
        if model.block_length is not None:
            inputs["clean_BT"], copies = target_BT, 2
        if model.takes_time:
            inputs["time_B"] = torch.rand(cell.batch_size).to(self.device)
        optimizer = AdamW().build(model)

        def step() -> None:
            with autocast(self.device, self.precision):
                output = model(tokens_BT, **inputs)
            loss = cross_entropy(output.logits_BTV.flatten(0, 1), target_BT.flatten()).mean()
            for extra in output.auxiliary.values():
                loss = loss + extra / cell.batch_size
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), AdamW().clip_norm or math.inf).item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        warmup = self.watch.until_stable(step, cell.warmup_seconds)
        return Measured(
            warmup=warmup,
            stable=is_stable(warmup),
            times=self.watch.repeat(step, cell.repeats, cell.seconds),
            tokens=cell.batch_size * cell.context,
            flops=3 * copies * cell.batch_size * model.sequence_flops(cell.context, cell.source_length).total,
            least_bytes=self.weight_bytes(),
        )

    def prefill(self) -> Measured:
        """Prompts read, each into a new state."""
        cell = self.cell
        tokens_BT = self._tokens(cell.context)
        states: list[DecodingState] = []

        def read() -> None:
            states[:] = [self._read(tokens_BT, cell.context)]

        warmup = self.watch.until_stable(read, cell.warmup_seconds)
        return Measured(
            warmup=warmup,
            stable=is_stable(warmup),
            times=self.watch.repeat(read, cell.repeats, cell.seconds),
            tokens=cell.batch_size * cell.context,
            flops=cell.batch_size * self.model.sequence_flops(cell.context, cell.source_length).total,
            least_bytes=self.weight_bytes(),
            state_bytes=states[0].num_bytes(),
            state_formula_bytes=cell.batch_size * self.model.state_bytes(cell.context, cell.source_length),
        )

    def decode(self) -> Measured:
        """Single tokens after the context; the last tokens of the context are the warm-up."""
        cell = self.cell
        capacity = cell.context + cell.decode_tokens
        approach = min(1 if cell.trial else APPROACH, cell.context - 1)
        state = self._read(self._tokens(cell.context - approach)[:1], capacity)
        state.select([0] * cell.batch_size)  # one prompt for all: reading it is not what is timed
        token_B1 = self._tokens(1)

        def step() -> None:
            self.model.step(token_B1, state)

        warmup = self.watch.repeat(step, approach)
        times = self.watch.repeat(step, 1 if cell.trial else cell.decode_tokens)
        flops = [
            self.model.step_flops(length, cell.source_length).total
            for length in range(cell.context, capacity)
        ]
        return Measured(
            warmup=warmup,
            stable=is_stable(warmup, window=approach // 2),
            times=times,
            tokens=cell.batch_size,
            flops=cell.batch_size * sum(flops) / len(flops),
            least_bytes=self.weight_bytes()
            + cell.batch_size * self.model.state_bytes(cell.context, cell.source_length),
            state_bytes=state.num_bytes(),
            state_formula_bytes=cell.batch_size * self.model.state_bytes(capacity, cell.source_length),
        )

    def kernels(self) -> dict[str, str]:
        """Which implementations ran; one token of many sequences, or in bf16, is decoded by PyTorch."""
        paths = self.model.kernels()
        if "decoding" in paths and (self.cell.batch_size > ROWS or self.precision != "fp32"):
            paths["decoding"] = "torch"
        return paths

    def _read(self, tokens_BT: Tensor, capacity: int) -> DecodingState:
        """The state after a prompt, read in pieces, with space for ``capacity`` tokens."""
        rows = tokens_BT.shape[0]
        source_BS = None if self.source_BS is None else self.source_BS[:rows]
        state = self.model.start(rows, capacity, source_BS=source_BS)
        for tokens_BP in tokens_BT.split(self.cell.piece, dim=1):
            self.model.step(tokens_BP, state)
        return state

    def weight_bytes(self) -> int:
        """Bytes of the weights that one more token is multiplied with, in the precision of the products."""
        shorter, longer = (
            self.model.sequence_flops(length, self.cell.source_length)
            for length in (self.cell.context, self.cell.context + 1)
        )
        return (longer - shorter).linear // 2 * (2 if self.precision == "bf16" else 4)

    def _tokens(self, length: int) -> Tensor:
        shape = (self.cell.batch_size, length)
        return torch.randint(self.cell.vocab_size, shape).to(self.device)
