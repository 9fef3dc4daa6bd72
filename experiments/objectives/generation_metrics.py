"""Metrics of the texts that models generate when they are evaluated.

Shapes: B batch, T length, N examples of a split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.objective import Score
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.metrics import (
    Likelihood,
    Metric,
    bits_per_byte,
    bits_per_byte_metric,
    jackknife,
)
from archbench.experiments.tasks.task import Batch
from archbench.experiments.tasks.text_metrics import text_metrics


@dataclass(frozen=True, kw_only=True)
class GeneratedExample:
    """The scores of an example: the likelihood of its target, and the generated text."""

    nats: float
    bytes: float
    text: str
    reference: str


def generated_examples(score: Score, texts: Sequence[str], batch: Batch) -> list[GeneratedExample]:
    """Pair the likelihood of each target with the text that the model generated."""
    assert score.nats_B is not None
    assert score.bytes_B is not None
    assert batch.references is not None
    parts = zip(score.nats_B.tolist(), score.bytes_B.tolist(), texts, batch.references, strict=True)
    return [
        GeneratedExample(nats=n, bytes=b, text=text, reference=reference) for n, b, text, reference in parts
    ]


def source_prompts(batch: Batch) -> list[list[int]]:
    """The sources of a batch of pairs, without their end tokens."""
    kept_BT = batch.valid_BT & ~batch.answer_BT
    return [row[is_source].tolist()[:-1] for row, is_source in zip(batch.tokens_BT, kept_BT, strict=True)]


def ended_answers(batch: Batch, num_tokens: int, vocabulary: Vocabulary) -> Batch:
    """The batch with each answer padded with end tokens to ``num_tokens`` tokens, which are also answers.

    A model that unmasks learns the length of an answer in this way, as in LLaDA (arXiv 2502.09992, section
    2.3), because the count of masked positions does not reveal it.
    """
    answer_BT = batch.answer_BT & batch.valid_BT
    first_B1 = answer_BT.int().argmax(1, keepdim=True)
    length = int(first_B1.max()) + num_tokens
    missing = max(length - batch.tokens_BT.shape[1], 0)
    index_T = torch.arange(batch.tokens_BT.shape[1] + missing)
    canvas_BT = ((index_T >= first_B1) & (index_T < first_B1 + num_tokens))[:, :length]

    def widened(x_BT: torch.Tensor, padding: int) -> torch.Tensor:
        return torch.nn.functional.pad(x_BT, (0, missing), value=padding)[:, :length]

    added_BT = canvas_BT & ~widened(batch.valid_BT, 0)
    tokens_BT = widened(batch.tokens_BT, vocabulary.pad).masked_fill(added_BT, vocabulary.eos)
    return dataclasses.replace(
        batch,
        tokens_BT=tokens_BT,
        context_BT=tokens_BT,
        answer_BT=canvas_BT,
        valid_BT=widened(batch.valid_BT, 0) | canvas_BT,
        bytes_BT=None if batch.bytes_BT is None else widened(batch.bytes_BT, 0).masked_fill(added_BT, 0),
    )


def generation_metrics(
    records: Sequence[GeneratedExample], split: str, likelihood: Likelihood, first: str, search: str
) -> list[Metric]:
    """Bits per byte of the targets, BLEU, ROUGE and exact match; the metric named ``first`` leads."""
    nats_N, bytes_N = (np.array([getattr(r, name) for r in records]) for name in ("nats", "bytes"))
    if bytes_N.sum() == 0:
        raise DataError(f"all targets of the {split} split are empty: no bytes to score")

    def pooled(index: np.ndarray) -> float:
        return float(bits_per_byte(nats_N[index].sum(), bytes_N[index].sum()))

    metrics = [
        bits_per_byte_metric(
            pooled(np.arange(len(records))),
            split=split,
            likelihood=likelihood,
            standard_error=jackknife(pooled, len(records)),
            items=len(records),
        ),
        *text_metrics([r.text for r in records], [r.reference for r in records], split, search),
    ]
    return sorted(metrics, key=lambda metric: metric.name != first)
