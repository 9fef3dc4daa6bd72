"""Capo: how many bits of knowledge does a model store, in all and for each of its parameters?

Allen-Zhu and Li 2024, "Physics of Language Models: Part 3.3" (arXiv 2404.05405; a task of Part 4.1, arXiv
2512.17351; code: facebookresearch/PhysicsLM4): random facts (name, attribute, value), each shown a number of
times in training, and the test asks for them. A fact of V equally likely values has log2 V bits; the model
stores these minus the cross-entropy of its answer. In the source, facts are biographies in English, and
models store about 2 bits per parameter after 1000 exposures, 1 after 100.

Here an example has a name and all of its attributes, each followed by its value, in random order. An epoch
shows every name once: epochs are exposures. Validation and test ask for every fact.

Shapes: B examples, T tokens, L symbols of a name, A attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG, epoch_order, permute
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.recall.base import FILLER, check_positive
from archbench.experiments.tasks.task import STORED_BITS, Batch, Facts

MOST_NAMES = 2**24
"""Most names to choose from."""


@dataclass(frozen=True, kw_only=True)
class CapoConfig(GeneratedConfig):
    """Settings of Capo."""

    num_names: int = 1024
    """Names (N), each with all attributes."""
    name_length: int = 3
    """Symbols of a name (L)."""
    num_symbols: int = 32
    """Symbols that names consist of."""
    num_attributes: int = 4
    """Attributes of each name (A)."""
    num_values: int = 64
    """Values of each attribute (V), equally likely."""
    facts_seed: int = 12345
    """Seed of names and values, which are the same for all seeds of a run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_names", "name_length", "num_symbols", "num_attributes")
        if self.num_values < 2:
            raise ValueError(f"num_values={self.num_values} must be at least 2")
        if not self.num_names <= self.num_symbols**self.name_length <= MOST_NAMES:
            raise ValueError(
                f"num_symbols={self.num_symbols} and name_length={self.name_length} give "
                f"{self.num_symbols**self.name_length} names; use at least num_names={self.num_names} and at "
                f"most {MOST_NAMES}"
            )


class Capo(Probe):
    """Symbols of names come first, from 1 on, then attributes, then values."""

    Config = CapoConfig
    config: CapoConfig
    knowledge: Facts
    generator = "capo-1"
    metric = STORED_BITS

    def __init__(self, config: CapoConfig) -> None:
        self.config = config
        self.sequence_length = config.name_length + 2 * config.num_attributes
        self.first_attribute = 1 + config.num_symbols
        self.first_value = self.first_attribute + config.num_attributes
        self.vocabulary = Vocabulary(
            num_symbols=self.first_value + config.num_values, num_sentinels=config.num_attributes
        )
        self.knowledge = Facts(
            count=config.num_names * config.num_attributes,
            per_example=config.num_attributes,
            bits=math.log2(config.num_values),
        )

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        c, rng = self.config, ExampleRNG(seed=seed, split=split, index_B=index_B)
        if split == "train":
            person_B = epoch_order(seed, index_B, c.num_names)
        else:
            person_B = permute(stream(seed, split, "order"), index_B % c.num_names, c.num_names)
        number_B1 = permute(stream("capo", c.facts_seed), person_B, c.num_symbols**c.name_length)[:, None]
        facts_rng = ExampleRNG(seed=c.facts_seed, split="facts", index_B=person_B)
        value_BA = facts_rng.integers("values", c.num_attributes, c.num_values)
        attribute_BA = rng.distinct("attributes", c.num_attributes, c.num_attributes)

        tokens_BT = np.empty((len(index_B), self.sequence_length), dtype=np.int64)
        digit_L = c.num_symbols ** np.arange(c.name_length)
        tokens_BT[:, : c.name_length] = 1 + number_B1 // digit_L % c.num_symbols
        tokens_BT[:, c.name_length :: 2] = self.first_attribute + attribute_BA
        tokens_BT[:, c.name_length + 1 :: 2] = self.first_value + np.take_along_axis(
            value_BA, attribute_BA, axis=1
        )
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, c.name_length + 1 :: 2] = True
        return batch_of(tokens_BT, np.where(answer_BT, FILLER, tokens_BT), answer_BT)

    def num_examples(self, split: str) -> int | None:
        trained = self.config.train_examples if split == "train" else None
        return trained or self.config.num_names

    @cached_property
    def _table(self) -> dict[tuple[int, ...], int]:
        """The value of each name and attribute, from one epoch of training."""
        table, length = {}, self.config.name_length
        for tokens in self.examples("train", 0, np.arange(self.config.num_names)).tokens_BT.tolist():
            for place in range(length, len(tokens), 2):
                table[(*tokens[:length], tokens[place])] = tokens[place + 1]
        return table

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Answer from the training split, because the answers are not in the context."""
        name = tuple(context[: self.config.name_length])
        return [self._table[(*name, context[position - 1])] for position in positions]

    def guesses(self) -> list[Reference]:
        return [
            Reference(
                name="random value",
                metric="answer_accuracy",
                value=1 / self.config.num_values,
                note="chance",
            )
        ]

    def references(self) -> list[Reference]:
        lines = (
            ("chance", 0.0, "every value equally likely"),
            ("all facts", self.knowledge.count * self.knowledge.bits, "every value known"),
        )
        return [Reference(name=name, metric=self.metric, value=bits, note=note) for name, bits, note in lines]
