"""What all generated probes share: every example is fresh, the training split never repeats."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.tasks.task import Batch, Task


class Probe(Task):
    """A task whose examples are made, not read. Subclasses set ``generator``."""

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


def batch_of(
    tokens_BT: NDArray[np.int64], context_BT: NDArray[np.int64], answer_BT: NDArray[np.bool_]
) -> Batch:
    """A batch without padding."""
    tokens = torch.from_numpy(tokens_BT)
    return Batch(
        tokens_BT=tokens,
        context_BT=torch.from_numpy(context_BT),
        answer_BT=torch.from_numpy(answer_BT),
        valid_BT=torch.ones_like(tokens, dtype=torch.bool),
    )
