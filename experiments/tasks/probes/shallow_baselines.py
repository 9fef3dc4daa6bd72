"""Shallow baselines: what simple statistics of the training split reach on a probe.

A score needs the scores of trivial solvers for comparison: a leaderboard
may cluster at the level of "the most frequent answer" without anyone noticing.
Each baseline is a table or a count, fitted on training examples and scored
on test examples by the metric of the models; it reads the context that a model reads.

Shapes: E examples, T tokens, N answers of all examples, V symbols, D distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.task import Task

EXAMPLES = 2000
"""Examples to fit on and to score on, at most: the first of the test split, as models are scored on."""
TOKENS = 2**16
"""Tokens of either, at most: a second is more than a reference line is worth."""
WINDOWS = (1, 2, 4)
"""Last tokens before the answer that the table baselines look at."""
REACH = 128
"""The farthest distance that is tried for a token to be copied from."""
COUNTED = 512
"""Symbols that a bag of tokens can be counted over; with more, it is left out."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of some examples, concatenated, and the contexts."""

    context_ET: NDArray[np.int64]
    visible_ET: NDArray[np.bool_]
    """False at padding and where an answer is hidden."""
    row_N: NDArray[np.int64]
    place_N: NDArray[np.int64]
    truth_N: NDArray[np.int64]
    num_symbols: int

    @classmethod
    def of(cls, task: Task, split: str) -> Answers:
        batch = task.batch(split, 0, 0, num_scored(task))
        answer_ET, valid_ET = batch.answer_BT.numpy(), batch.valid_BT.numpy()
        row_N, place_N = np.nonzero(answer_ET & valid_ET)
        return cls(
            context_ET=batch.context_BT.numpy(),
            visible_ET=valid_ET & ~answer_ET,
            row_N=row_N,
            place_N=place_N,
            truth_N=batch.tokens_BT.numpy()[row_N, place_N],
            num_symbols=task.vocabulary.num_symbols,
        )

    @cached_property
    def per_row_E(self) -> NDArray[np.int64]:
        return np.bincount(self.row_N, minlength=len(self.context_ET))

    @cached_property
    def order_N(self) -> NDArray[np.int64]:
        """0 for the first answer of its example, 1 for the second, ..."""
        first_E = np.cumsum(self.per_row_E) - self.per_row_E
        return np.arange(len(self.row_N)) - first_E[self.row_N]

    @cached_property
    def counts_EV(self) -> NDArray[np.float64]:
        """Count how often each symbol is visible in each example."""
        code_ET = self.context_ET + self.num_symbols * np.arange(len(self.context_ET))[:, None]
        counted = np.bincount(code_ET[self.visible_ET], minlength=len(self.context_ET) * self.num_symbols)
        return counted.reshape(-1, self.num_symbols).astype(np.float64)

    def before(self, distance: int, place_N: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The token ``distance`` positions before each answer (or position); -1 outside the sequence."""
        at_N = (self.place_N if place_N is None else place_N) - distance
        return np.where(at_N < 0, -1, self.context_ET[self.row_N, at_N.clip(0)])

    def score(self, right_N: NDArray[np.floating] | NDArray[np.bool_]) -> float:
        """Mean over examples of the fraction of their answers that is right."""
        return float((right_N / self.per_row_E[self.row_N]).sum() / len(self.context_ET))


def num_scored(task: Task) -> int:
    """Return how many examples the baselines of a task are fitted on, and scored on."""
    return max(2, min(EXAMPLES, TOKENS // task.sequence_length))


def shallow_scores(task: Task) -> dict[str, float]:
    """Return the score of each baseline on the test split, by the name of the tokens it uses."""
    train, test = Answers.of(task, "train"), Answers.of(task, "test")
    guess_N = _table(train, test, np.zeros_like(train.row_N), np.zeros_like(test.row_N), None)
    guesses = {
        "majority": guess_N,
        "number of the answer": _table(train, test, train.order_N, test.order_N, guess_N),
    }
    train_key, test_key = np.zeros_like(train.row_N), np.zeros_like(test.row_N)
    for distance in range(1, max(WINDOWS) + 1):
        train_key, test_key = (
            keys * (train.num_symbols + 1) + answers.before(distance) + 1
            for keys, answers in ((train_key, train), (test_key, test))
        )
        guess_N = _table(
            train, test, train_key, test_key, guess_N
        )  # a window never seen: the next smaller one
        if distance in WINDOWS:
            guesses[f"last {distance} tokens" if distance > 1 else "last token"] = guess_N
    guesses["first token"] = _table(
        train, test, _ends(train, 0), _ends(test, 0), guesses["number of the answer"]
    )
    guesses["first and last tokens"] = _table(
        train, test, _ends(train, 2), _ends(test, 2), guesses["first token"]
    )
    guesses["token at a distance"] = _distance(train, test)
    if train.num_symbols <= COUNTED:
        guesses["bag of tokens"] = _bag(train, test)
        # A hash of the index of the answer and of how often each symbol occurs, regardless of the order.
        weight_V = np.random.default_rng(0).integers(1, 2**40, train.num_symbols)
        train_key, test_key = (
            (answers.counts_EV.astype(np.int64) @ weight_V)[answers.row_N] * 1009 + answers.order_N
            for answers in (train, test)
        )
        guesses["same bag of tokens"] = _table(train, test, train_key, test_key, guesses["bag of tokens"])
    scores = {name: test.score(guess_N == test.truth_N) for name, guess_N in guesses.items()}
    # The chance that a visible token is right, drawn from those that are ever an answer.
    counts_EV = test.counts_EV * np.isin(np.arange(test.num_symbols), train.truth_N)
    right_N = counts_EV[test.row_N, test.truth_N] / np.maximum(counts_EV.sum(1)[test.row_N], 1)
    return scores | {"random token shown": test.score(right_N)}


def best_reference(scores: dict[str, float], metric: str, items: int) -> Reference:
    """Return the reference line of the best baseline of ``items`` examples, the other ones in its note."""
    names = sorted(scores, key=lambda name: -scores[name])
    others = ", ".join(f"{name} {scores[name]:.3f}" for name in names[1:])
    note = f"the best of the shallow baselines, fitted on the training split; the other ones: {others}"
    return Reference(
        name=f"shallow: {names[0]}", metric=metric, value=scores[names[0]], note=note, items=items
    )


def _table(
    train: Answers,
    test: Answers,
    key_N: NDArray[np.int64],
    other_N: NDArray[np.int64],
    fallback_N: NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """For each answer of ``test`` the most frequent one among those of ``train`` with its key."""
    pair_P, count_P = np.unique(np.stack([key_N, train.truth_N]), axis=1, return_counts=True)
    order_P = np.lexsort((-count_P, pair_P[0]))
    known_K, first_K = np.unique(pair_P[0][order_P], return_index=True)
    answer_K = pair_P[1][order_P][first_K]
    at_N = np.searchsorted(known_K, other_N).clip(max=len(known_K) - 1)
    guess_N = answer_K[at_N]
    return guess_N if fallback_N is None else np.where(known_K[at_N] == other_N, guess_N, fallback_N)


def _ends(answers: Answers, num_last: int) -> NDArray[np.int64]:
    """A key of the answer's index, the first token, and the ``num_last`` tokens before the first answer."""
    parts = [answers.context_ET[answers.row_N, 0]]
    first_N = answers.place_N[np.searchsorted(answers.row_N, answers.row_N)]  # rows are sorted
    parts += [answers.before(distance, first_N) + 1 for distance in range(1, num_last + 1)]
    key_N = answers.order_N
    for part in parts:
        key_N = key_N * (answers.num_symbols + 1) + part
    return key_N


def _distance(train: Answers, test: Answers) -> NDArray[np.int64]:
    """The token at the distance before the answer that was right most often for answers of this index."""
    reach = min(REACH, train.context_ET.shape[1])
    orders = int(max(train.order_N.max(), test.order_N.max())) + 1
    hits_OD = np.stack(
        [
            np.bincount(train.order_N, train.before(distance) == train.truth_N, minlength=orders)
            for distance in range(1, reach + 1)
        ],
        axis=1,
    )
    return test.before((1 + hits_OD.argmax(1))[test.order_N])


def _bag(train: Answers, test: Answers) -> NDArray[np.int64]:
    """Naive Bayes on how often each symbol occurs in the context, add-one smoothed."""
    classes_C, class_N = np.unique(train.truth_N, return_inverse=True)
    per_class_CE = np.zeros((len(classes_C), len(train.context_ET)))
    np.add.at(per_class_CE, (class_N, train.row_N), 1.0)
    counts_CV = per_class_CE @ train.counts_EV + 1
    log_CV = np.log(counts_CV / counts_CV.sum(1, keepdims=True))
    score_EC = test.counts_EV @ log_CV.T + np.log(np.bincount(class_N))
    return classes_C[score_EC.argmax(1)][test.row_N]
