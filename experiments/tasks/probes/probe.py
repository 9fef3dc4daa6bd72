"""Base classes of the generated tasks: fresh examples or a fixed set of them, an oracle, reference lines.

Shapes: B examples, T tokens.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import epoch_order
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.shallow_baselines import best_reference, num_scored, shallow_scores
from archbench.experiments.tasks.task import Batch, Task

TRAIN_SET_SEED = 0
"""Seed of the examples of a finite training set: the same set for every run."""
REDRAWS = 20
"""Maximum redraws of a held-out example that is also a training example."""
CHECKED_TOKENS = 2**26
"""Most tokens of a training set with which held-out examples are compared."""
_CHUNK = 2**20
"""Tokens that are generated at once to compare."""


@dataclass(frozen=True, kw_only=True)
class GeneratedConfig:
    """Settings that all generated tasks have."""

    train_examples: int | None = None
    """Examples of the training set: the same for every seed, gone through in epochs, each in a new order;
    null makes every training example fresh."""

    def __post_init__(self) -> None:
        if self.train_examples is not None and self.train_examples < 1:
            raise ValueError(f"train_examples={self.train_examples} must be at least 1, or null")


class Generated(Task):
    """A task with generated examples. Subclasses set ``generator``.

    Training examples are fresh, or those of a finite set (``train_examples``). Held-out examples that are in
    the set are then redrawn, so that none is trained on, unless the task has hardly any other examples.
    """

    metric = "answer_accuracy"
    generator: ClassVar[str]
    """Name and number of the generator; the number rises whenever the same settings give other examples."""
    config: Any

    @abstractmethod
    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        """Return the examples with these indices: each is a pure function of split, seed and index."""

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        index_B = np.arange(start, start + count, dtype=np.int64)
        size = self.config.train_examples
        if size is None:
            return self.examples(split, seed, index_B)
        if split == "train":
            return self.examples(split, TRAIN_SET_SEED, epoch_order(seed, index_B, size))
        return self._unseen(split, seed, index_B)

    def num_examples(self, split: str) -> int | None:
        """Return the size of the training set; None for examples that never run out."""
        return self.config.train_examples if split == "train" else None

    def overlap(self, split: str, count: int) -> float | None:
        """Return the fraction of the first ``count`` held-out examples that are also in the training set.

        None where that is not finite, or so large that it is not compared.
        """
        if self._train_set is None:
            return None
        keys = example_keys(self.batch(split, 0, 0, count))
        return sum(key in self._train_set for key in keys) / count

    def _unseen(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        """Return held-out examples; those of the training set are redrawn up to ``REDRAWS`` times."""
        batch = self.examples(split, seed, index_B)
        train_keys = self._train_set or frozenset()
        for attempt in range(REDRAWS):
            seen_B = torch.tensor([key in train_keys for key in example_keys(batch)])
            if not seen_B.any():
                break
            redrawn = self.examples(split, stream(seed, "again", attempt), index_B[seen_B.numpy()])
            batch = batch.with_rows(seen_B, redrawn)
        return batch

    @cached_property
    def _train_set(self) -> frozenset[bytes] | None:
        """The keys of the training set; None where it is not finite, or too large."""
        size = self.config.train_examples
        if size is None or size * self.sequence_length > CHECKED_TOKENS:
            return None
        step = max(1, _CHUNK // self.sequence_length)
        parts = (np.arange(start, min(start + step, size)) for start in range(0, size, step))
        return frozenset(
            key for part in parts for key in example_keys(self.examples("train", TRAIN_SET_SEED, part))
        )

    @property
    def fingerprint(self) -> str:
        settings = sorted(asdict(self.config).items())
        return hashlib.sha256(f"{self.generator} {settings}".encode()).hexdigest()[:16]


class Probe(Generated):
    """A generated task that a plain program can solve from the context."""

    @abstractmethod
    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        """The oracle: compute the answers at ``positions`` from the context.

        It shares no code with the generator and is plain rather than fast, so that its accuracy of 100%
        shows that the context determines the answers.

        Args:
            context: the context of one example, a noise token at each answer, padding left out.
            positions: the positions of the answers, ascending.
        """

    def guesses(self) -> list[Reference]:
        """Return the scores of guessing, by formulas."""
        return []

    def references(self) -> list[Reference]:
        return [*self.guesses(), best_reference(shallow_scores(self), self.metric, num_scored(self))]


def example_keys(batch: Batch) -> list[bytes]:
    """Return a hash of all tokens of each example, answers included: equal examples have equal keys."""
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in batch.tokens_BT.numpy()]


def batch_of(
    tokens_BT: NDArray[np.int64],
    context_BT: NDArray[np.int64],
    answer_BT: NDArray[np.bool_],
    valid_BT: NDArray[np.bool_] | None = None,
) -> Batch:
    """A batch, without padding unless it is given."""
    tokens = torch.from_numpy(tokens_BT)
    return Batch(
        tokens_BT=tokens,
        context_BT=torch.from_numpy(context_BT),
        answer_BT=torch.from_numpy(answer_BT),
        valid_BT=torch.ones_like(tokens, dtype=torch.bool)
        if valid_BT is None
        else torch.from_numpy(valid_BT),
    )
