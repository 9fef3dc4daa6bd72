"""Base classes of the generated tasks: fresh examples, an oracle, reference lines to read a score against."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.tasks.probes.shallow_baselines import best_reference, num_scored, shallow_scores
from experiments.tasks.task import Batch, Reference, Task


class Generated(Task):
    """A task whose examples are made, not read. Subclasses set ``generator``.

    Every example is fresh: the training split never repeats.
    """

    metric = "answer_accuracy"
    generator: ClassVar[str]
    """Name and number of the generator; the number rises whenever the same settings give other examples."""
    config: Any

    def num_examples(self, split: str) -> int | None:
        return None

    @property
    def fingerprint(self) -> str:
        settings = sorted(asdict(self.config).items())
        return hashlib.sha256(f"{self.generator} {settings}".encode()).hexdigest()[:16]


class Probe(Generated):
    """A generated task whose answers a plain program finds in the tokens shown."""

    @abstractmethod
    def solve(self, shown: Sequence[int], asked: Sequence[int]) -> list[int]:
        """The oracle: the answers at the positions ``asked``, worked out from the tokens shown.

        It shares no code with the generator and is plain rather than fast, so that its 100% says that
        the answers follow from what a model is shown.

        Args:
            shown: the context of one example, a noise token at each answer, padding left out.
            asked: the positions of the answers, ascending.
        """

    def guesses(self) -> list[Reference]:
        """Return the scores of guessing, by formulas."""
        return []

    def references(self) -> list[Reference]:
        return [*self.guesses(), best_reference(shallow_scores(self), self.metric, num_scored(self))]


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
