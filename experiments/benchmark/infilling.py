"""Texts filled in, timed: what ``experiments.generate`` does with a model that fills in blanks.

A text is written from an empty prompt and ends nowhere, so that every place of it is committed. Only these
tokens count, never the places a pass looks at again. Tokens are drawn at temperature 1. A block diffusion
model keeps its finished blocks in its decoding state, as always; reading one into it is a pass as well.

Shapes: R rows of a pass, T tokens of each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone
from archbench.experiments.benchmark.timing import is_stable
from archbench.experiments.benchmark.workloads import Cell, CellConfig, Measured
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.runtime.device import inference
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.task import Batch, Task

WARMUP_STEPS = 4
"""Denoising steps of the texts that are written to warm up."""
TEXTS = 3
"""Largest number of timed batches, unless ``seconds`` needs more: one has many passes."""


class Blanks(Task):
    """No examples, only token ids: enough to fill in a text."""

    metric = "bits_per_byte"
    fingerprint = "blanks"
    sequence_length = 0

    def __init__(self, vocab_size: int) -> None:
        self.vocabulary = Vocabulary(num_symbols=vocab_size - smallest_vocabulary() + 1, num_sentinels=0)

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        raise DataError("there are no examples here")

    def num_examples(self, split: str) -> int | None:
        return None


def smallest_vocabulary() -> int:
    """The special tokens and one to write."""
    return Vocabulary(num_symbols=1, num_sentinels=0).size


class Passes:
    """The forward passes of a model, seen at its embedding: rows, tokens, and tokens read before."""

    def __init__(self, model: Backbone) -> None:
        self.seen: list[tuple[int, int, Tensor | None]] = []
        self.hook = model.embedding.register_forward_hook(self._note)

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        rows, length = inputs[0].shape
        # The position of the first token; read later, so that no pass waits for it.
        self.seen.append((rows, length, inputs[1].flatten()[0] if len(inputs) > 1 else None))

    def take(self) -> list[tuple[int, int, int]]:
        """Return the passes since the last call."""
        passes = [(rows, length, 0 if at is None else int(at)) for rows, length, at in self.seen]
        self.seen.clear()
        return passes


class Sampler(Cell):
    """A model and its objective, which fills in the blanks."""

    def __init__(
        self,
        model: Backbone,
        cell: CellConfig,
        device: torch.device,
        precision: str,
        objective: UnmaskingObjective,
    ) -> None:
        super().__init__(model, cell, device, precision)
        self.objective = objective

    def write(self) -> int:
        """Fill in the same batch of texts; return the tokens committed, over the full batch."""
        texts = self.objective.sample(
            self.model,
            [[] for _ in range(self.cell.batch_size)],
            max_tokens=self.cell.context,
            generators=[torch.Generator().manual_seed(row) for row in range(self.cell.batch_size)],
            sampling=SamplingConfig(),
        )
        return sum(map(len, texts))

    def measure(self) -> Measured:
        """Batches of texts; the warm-up writes them in fewer steps."""
        cell, committed = self.cell, list[int]()
        passes = Passes(self.model)
        with inference(self.model, self.device, self.precision):
            self.objective.override_unmasking(steps=WARMUP_STEPS)
            warmup = self.watch.until_stable(self.write, cell.warmup_seconds)
            self.objective.override_unmasking(steps=cell.steps)
            passes.take()
            least = min(cell.repeats, TEXTS)
            times = self.watch.repeat(lambda: committed.append(self.write()), least, cell.seconds)
        passes.hook.remove()
        seen = passes.take()
        return Measured(
            warmup=warmup,
            stable=is_stable(warmup),
            times=times,
            tokens=committed[-1],
            flops=sum(rows * self._flops(length, start) for rows, length, start in seen) / len(times),
            least_bytes=sum(
                self.weight_bytes() + rows * self.model.state_bytes(start) for rows, _, start in seen
            )
            // len(times),
            passes=len(seen) // len(times),
        )

    def _flops(self, length: int, start: int) -> int:
        """FLOPs of a pass over ``length`` tokens of one sequence after the ``start`` tokens in its state."""
        total = self.model.sequence_flops(start + length)
        return (total - self.model.sequence_flops(start)).total if start else total.total
