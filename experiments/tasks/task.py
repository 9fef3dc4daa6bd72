"""The task contract: tokens, and which of them are answers.

Example ``i`` of split ``s`` under seed ``d`` is a pure function of ``(s, d, i)``,
so the position of a run in its data is one integer. Objectives turn the same
example into their own form (a causal model predicts the answer, a bidirectional
one fills it in, an encoder-decoder generates it), which is what lets all families
share one table and one metric.

Shapes: B examples, T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.metrics import Reference

if TYPE_CHECKING:
    from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer  # slow to import


class TaggedWords(NamedTuple):
    """The words of a sentence, or of a piece of a long one, as they are scored."""

    sentence: int
    """The number of the sentence in its split."""
    begin: int
    """Words of the sentence before these."""
    tags: list[int]
    positions: list[int | None]
    """The token that each word is tagged at; None for a word of which the tokenizer makes no token."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples ``start .. start + B`` of a split."""

    tokens_BT: Tensor
    """The complete sequences, answers included, int64."""
    context_BT: Tensor
    """The same as the task lets later positions read them. Equal to ``tokens_BT`` in text; in a
    probe with hidden answers, a noise token replaces each answer."""
    answer_BT: Tensor
    """True at the positions to be scored."""
    valid_BT: Tensor
    """False at padding."""
    bytes_BT: Tensor | None = None
    """Bytes of the tokenizer's input text for each token, for bits per byte; None where the
    task is not text."""
    whole: bool = False
    """True when the full sequence is to be modelled (text); False when answers complete a prompt."""
    split: str = "train"
    """The split the examples are of, for objectives that ask the task for more of the same."""
    segments_BT: Tensor | None = None
    """The segment (0 or 1) of each token, where an example is a pair of texts."""
    label_B: Tensor | None = None
    """The class (int64) or the score (float32) of each example, where the task has such labels."""
    references: Sequence[str] | None = None
    """The target text of each example, where targets are texts; generated texts are compared with it."""
    tag_BT: Tensor | None = None
    """The tag of each token (int64), right where ``answer_BT`` is True, where the task has tags."""
    words: Sequence[TaggedWords] | None = None
    """The words of each example, where the task has tags."""
    cluster_B: Tensor | None = None
    """The group (int64) of examples that each belongs to, such as its document; None where every example
    is a group. Standard errors are over groups."""
    true_nats_B: Tensor | None = None
    """-log p of the scored tokens of each example (float64) under the distribution that generated them, where
    that is known. The score is then the bits above it (``EXCESS_BITS``)."""

    def with_rows(self, chosen_B: Tensor, replacement: Batch) -> Batch:
        """Return the batch with the chosen rows replaced by those of a batch with the same fields."""
        parts = dict(vars(self))
        for name, value in parts.items():
            if isinstance(value, Tensor):
                parts[name] = value.clone()
                parts[name][chosen_B] = getattr(replacement, name)
        return Batch(**parts)

    def rows(self, start: int, stop: int) -> Batch:
        """Return the batch of some of the examples."""
        parts = dict(vars(self))
        for name, value in parts.items():
            if isinstance(value, Tensor | list | tuple):
                parts[name] = value[start:stop]
        return Batch(**parts)


EXCESS_BITS = "excess_bits"
"""Name of the score of a language whose distribution is known: bits per token above those of that."""
STORED_BITS = "stored_bits"
"""Name of the score of random facts: the bits of them that a model stores."""
UNIFORM = "uniform"
"""Name of the reference that gives every token of the vocabulary the same probability."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Random facts that a model is to store. The test split asks once for each."""

    count: int
    per_example: int
    bits: float
    """Information of one fact."""


class Task(ABC):
    """Base class of all tasks. Subclasses set ``Config``; the harness builds ``Task(config)``."""

    Config: ClassVar[type]
    vocabulary: Vocabulary
    sequence_length: int
    metric: str
    """The metric the table shows, such as ``bits_per_byte`` or ``answer_accuracy``."""
    targets: ClassVar[str] = "tokens"
    """The type of targets: ``tokens``, ``texts``, or ``classes``, ``scores``, ``tags`` (no tokens)."""
    classes: Sequence[str] = ()
    """Names of the classes or tags, in the order of their indices."""
    has_labels: ClassVar[bool] = False
    """True where the task is a classification: one answer, at the last position, from a few labels."""
    tokenizer: TextTokenizer | None = None
    """The tokenizer; None where the task's tokens are no text."""
    stride: int | None = None
    """Tokens from one held-out window to the next, where examples are windows of text."""
    labels: Sequence[int] = ()
    """The token ids that a classification's answer can be; else empty."""

    blank: ClassVar[int | None] = None
    """The padding token on the left of sequences shorter than ``sequence_length``, if any."""

    knowledge: Facts | None = None
    """The facts that the answers are; None where answers follow from the context."""

    levels: int = 0
    """The tokens 0 to ``levels`` - 1 are brightness in equal steps; 0 where tokens are not numeric."""

    @abstractmethod
    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        """Examples ``start .. start + count`` of ``split`` under ``seed``: a pure function.

        An example does not depend on the other examples of the batch, nor does its padded length.
        Held-out examples are in random order, so that the first of them are a sample of the full split.
        """

    @abstractmethod
    def num_examples(self, split: str) -> int | None:
        """Return the number of distinct examples of the split; None when they never run out."""

    def sample_ends(self, split: str) -> NDArray[np.int64] | None:
        """Return where a sample of a held-out split may end: after how many examples, in ascending order.

        The pieces of a text that are scored together are in one sample. None if a sample may end anywhere.
        """
        return None

    def clustered_by(self, split: str) -> str:
        """Return the unit that ``Batch.cluster_B`` indexes in a held-out split."""
        return "example"

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the data: equal fingerprints mean equal examples."""

    @property
    def note(self) -> str | None:
        """Return what a reader of the scores should know of the splits; None if there is no note."""
        return None

    def lossy_documents(self, split: str) -> int:
        """Return how many texts of a split the tokenizer does not give back as they were."""
        return 0

    def scored_texts(self, split: str, seed: int, start: int, count: int) -> list[bytes]:
        """Return the text, in UTF-8, of the scored tokens of each example of a batch."""
        raise AssertionError(f"{type(self).__name__} has no text that is scored in bits per byte")

    def overlap(self, split: str, count: int) -> float | None:
        """Return the fraction of the first ``count`` held-out examples that are also training examples.

        None where that is not known: it is of generated tasks with a finite training set.
        """
        return None

    def references(self) -> list[Reference]:
        """Return reference lines, printed with every model's score."""
        return []

    stops: Sequence[int] = ()
    """Tokens that end a text of ``prompts``."""

    def prompts(self, split: str, seed: int, count: int) -> list[list[int]]:
        """Return beginnings of texts; what models make of them is judged by ``is_valid``. None by default."""
        return []

    def is_valid(self, text: Sequence[int]) -> bool:
        """Return True if a completed text, its prompt and end token included, is one of the language."""
        raise AssertionError(f"{type(self).__name__} has no prompts")
