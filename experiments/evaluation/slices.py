"""Slices of the tokens of a text: where in it a model spends its bits.

Every token of a window is in one slice of each grouping (``by``):

    recall      whether the token completes an n-gram that occurs earlier in its window, which a model can
                repeat from its context (Arora et al. 2023, Zoology, arXiv 2312.04927): n = 2, or 8 of bytes
    repeat      the longest n-gram that ends with the token and occurs earlier in its window
    position    the number of tokens before it in its window
    frequency   the fraction of the training text that consists of more frequent tokens
    kind        type of text (``experiments.evaluation.text_kinds``)

They depend on the text, the tokenizer and the windows, not on a model: all models of a table share them. The
slices of a grouping add up to the score.

Shapes: B batch, T length, V vocabulary, N sequences of a split, K values of each: three for each slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archbench.experiments.data.tokenizers.tokenizer import ByteTokenizer
from archbench.experiments.evaluation.text_kinds import KINDS, token_kinds
from archbench.experiments.objectives.objective import TokenScores
from archbench.experiments.tasks.metrics import SliceTotals, cluster_totals, nats_to_bits
from archbench.experiments.tasks.task import Batch, Task
from archbench.experiments.tasks.text.text import Text

RECALL_TOKENS, RECALL_BYTES = 2, 8
"""The n of ``recall``. A pair of bytes repeats by chance; two tokens of a trained vocabulary have about eight
bytes."""
REPEATS = {1: "nothing", 2: "2 or 3", 4: "4 to 7", 8: "8 to 15", 16: "16 or more"}
"""Names of the slices of ``repeat`` by their smallest n."""
FREQUENCIES = {0.0: "commonest half", 0.5: "next 40%", 0.9: "next 9%", 0.99: "rarest 1%"}
"""Names of the slices of ``frequency`` by the share at which they begin."""
STRETCHES = 4
"""Equal parts of the scored positions of a window."""
CLUSTERS = 32
"""Number of groups of documents with recorded sums."""
SUMS = 3
"""Values of each slice of a sequence: nats, tokens, bytes."""


class Grouping(NamedTuple):
    """A way to divide tokens into slices."""

    by: str
    names: tuple[str, ...]


class TokenSlices:
    """The slices of the windows of a text task."""

    def __init__(self, task: Task) -> None:
        assert isinstance(task, Text)
        self.task = task
        self.recall = RECALL_BYTES if isinstance(task.tokenizer, ByteTokenizer) else RECALL_TOKENS
        length, context = task.sequence_length, task.sequence_length - task.stride
        ends = [context + task.stride * part // STRETCHES for part in range(STRETCHES + 1)]
        self.begins = sorted({0, *ends[:-1]})
        self.frequency_V = frequency_bands(task.train_token_counts())
        unit = "bytes" if self.recall == RECALL_BYTES else "tokens"
        last_positions = [begin - 1 for begin in [*self.begins[1:], length]]
        positions = (f"{begin:,} to {end:,}" for begin, end in zip(self.begins, last_positions, strict=True))
        self.groupings = (
            Grouping("recall", (f"repeats fewer than {self.recall} {unit}", f"repeats {self.recall} {unit}")),
            Grouping("repeat", tuple(REPEATS.values())),
            Grouping("position", tuple(positions)),
            Grouping("frequency", tuple(FREQUENCIES.values())),
            Grouping("kind", KINDS),
        )

    def labels(self, batch: Batch, texts: Sequence[bytes]) -> list[NDArray[np.int64]]:
        """Return the slice (B, T) of each token of windows in each of ``groupings``, as its number there."""
        assert batch.bytes_BT is not None
        longest_BT = longest_repeats(batch.tokens_BT, max(REPEATS)).numpy()
        window_BT, bytes_BT = batch.tokens_BT.numpy(), batch.bytes_BT.numpy()
        position_T = np.searchsorted(self.begins, np.arange(window_BT.shape[1]), side="right") - 1
        return [
            (longest_BT >= self.recall).astype(np.int64),
            np.searchsorted(list(REPEATS), longest_BT, side="right") - 1,
            np.broadcast_to(position_T, window_BT.shape),
            self.frequency_V[window_BT],
            np.stack([token_kinds(text, bytes_T) for text, bytes_T in zip(texts, bytes_BT, strict=True)]),
        ]

    def sums(self, batch: Batch, scores: TokenScores, texts: Sequence[bytes]) -> Tensor:
        """Return nats, tokens and bytes (B, K) of each slice of each sequence, in order of ``groupings``.

        ``texts`` are those of the windows.
        """
        rows = len(batch.tokens_BT)
        values = [x.numpy() for x in (scores.nats_BT, scores.tokens_BT, scores.bytes_BT)]
        parts = []
        for grouping, slice_BT in zip(self.groupings, self.labels(batch, texts), strict=True):
            size = len(grouping.names)
            index_N = (slice_BT + size * np.arange(rows)[:, None]).ravel()
            sums = [np.bincount(index_N, x_BT.ravel(), rows * size).reshape(rows, size) for x_BT in values]
            parts.append(np.stack(sums, axis=2).reshape(rows, SUMS * size))
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def totals(self, sums_NK: NDArray[np.float64], cluster_N: NDArray[np.float64]) -> list[SliceTotals]:
        """Return the totals of each slice that is not empty."""
        names = [(grouping.by, name) for grouping in self.groupings for name in grouping.names]
        slice_totals = []
        for (by, name), (nats_N, tokens_N, bytes_N) in zip(
            names, sums_NK.T.reshape(len(names), SUMS, -1), strict=True
        ):
            if not (nats_N.any() or tokens_N.any() or bytes_N.any()):
                continue
            bits_N = nats_to_bits(nats_N)
            slice_totals.append(
                SliceTotals(
                    by=by,
                    name=name,
                    bits=float(bits_N.sum()),
                    tokens=float(tokens_N.sum()),
                    bytes=float(bytes_N.sum()),
                    cluster_totals=[
                        [round(bits, 2), round(tokens, 2)]
                        for bits, tokens in cluster_totals(bits_N, tokens_N, cluster_N, groups=CLUSTERS)
                    ],
                )
            )
        return slice_totals


def longest_repeats(tokens_BT: Tensor, most: int) -> Tensor:
    """Return the longest n-gram (B, T) that ends with each token and occurs earlier in its row.

    Only the powers of two up to ``most`` are distinguished: the largest n that is reached; 1 if the token and
    the one before it did not occur together. The earlier n-gram may overlap.

    The n-grams of twice a length are pairs of those of the length, so each length needs one sort (prefix
    doubling: Karp, Miller and Rosenberg 1972).
    """
    rows, length = tokens_BT.shape
    found_BT, row_B1 = torch.ones_like(tokens_BT), torch.arange(rows)[:, None]
    number_BS = (
        tokens_BT  # of the n-gram that ends at each place from n - 1 on; equal in a row where they are
    )
    n = 1
    while 2 * n <= min(most, length):
        count = int(number_BS.max()) + 1
        pair_BS = (row_B1 * count + number_BS[:, :-n]) * count + number_BS[:, n:]
        n *= 2
        sorted_N, order_N = pair_BS.flatten().sort(stable=True)
        same_N = torch.zeros_like(sorted_N, dtype=torch.bool)
        same_N[1:] = sorted_N[1:] == sorted_N[:-1]  # all but the first of equal ones
        number_N, again_N = torch.empty_like(sorted_N), torch.empty_like(same_N)
        number_N[order_N], again_N[order_N] = (~same_N).cumsum(0), same_N
        number_BS = number_N.view(pair_BS.shape)
        found_BT[:, n - 1 :][again_N.view(pair_BS.shape)] = n
    return found_BT


def frequency_bands(count_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the band (V,) of each token: the share of a text that more frequent tokens make up."""
    order_V = np.argsort(-count_V, kind="stable")
    before_V = np.cumsum(count_V[order_V]) - count_V[order_V]
    band_V = np.empty(len(count_V), dtype=np.int64)
    band_V[order_V] = np.searchsorted(list(FREQUENCIES), before_V / count_V.sum(), side="right") - 1
    return band_V
