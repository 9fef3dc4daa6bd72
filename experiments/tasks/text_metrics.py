"""Metrics of generated texts: BLEU by sacrebleu, ROUGE by rouge-score, exact match."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import metadata

import numpy as np

from experiments.tasks.metrics import Metric, jackknife

ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
"""Our names and those of the rouge-score package."""
TEXT_METRICS = ("bleu", *ROUGE, "exact_match")


def bleu(texts: Sequence[str], references: Sequence[str]) -> tuple[float, float, str]:
    """Corpus BLEU in 0..100 (Papineni et al. 2002), its standard error, and sacrebleu's signature.

    Post 2018 (arXiv 1804.08771): only scores of equal signatures may be compared. The standard error is
    over the texts, by jackknife; NaN for fewer than two.
    """
    from sacrebleu.metrics.bleu import BLEU

    metric, sentence = (
        BLEU(),
        BLEU(effective_order=True),
    )  # which changes scores of sentences, not their counts
    value = metric.corpus_score(list(texts), [list(references)]).score
    counts = []
    for text, reference in zip(texts, references, strict=True):
        score = sentence.sentence_score(text, [reference])
        counts.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    count_NC = np.array(counts)
    order = (count_NC.shape[1] - 2) // 2

    def of(index: np.ndarray) -> float:
        total_C = count_NC[index].sum(0).tolist()
        return BLEU.compute_bleu(
            correct=total_C[:order],
            total=total_C[order : 2 * order],
            sys_len=total_C[-2],
            ref_len=total_C[-1],
            smooth_method="exp",  # the metric's default
        ).score

    error = jackknife(of, len(count_NC)) if len(count_NC) > 1 else math.nan
    return value, error, str(metric.get_signature())


def rouge(texts: Sequence[str], references: Sequence[str]) -> dict[str, np.ndarray]:
    """ROUGE-1, ROUGE-2 and ROUGE-L of each text, F-measure in 0..1 (Lin 2004), without stemming."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE.values()), use_stemmer=False)
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {
        name: np.array([score[rouge_name].fmeasure for score in scores]) for name, rouge_name in ROUGE.items()
    }


def text_metrics(texts: Sequence[str], references: Sequence[str], split: str, search: str) -> list[Metric]:
    """All metrics of the texts of a split; ``search`` describes how they were generated."""
    value, error, signature = bleu(texts, references)
    exact_N = np.array([text == reference for text, reference in zip(texts, references, strict=True)], float)
    package = f"rouge-score {metadata.version('rouge-score')}, F-measure, no stemming"
    means = [(name, value_N, package) for name, value_N in rouge(texts, references).items()]
    means.append(("exact_match", exact_N, "the text is the reference"))

    def metric(name: str, value: float, error: float, unit: str, averaging: str, estimator: str) -> Metric:
        return Metric(
            name=name, split=split, value=value, unit=unit, direction="higher", averaging=averaging,
            likelihood=None, estimator=f"{estimator}; {search}", samples=1, standard_error=error,
            items=len(texts),
        )  # fmt: skip

    metrics = [metric("bleu", value, error, "BLEU", "micro: counts of all texts", f"sacrebleu {signature}")]
    for name, value_N, estimator in means:
        error = value_N.std(ddof=1).item() / math.sqrt(len(value_N))
        metrics.append(
            metric(name, value_N.mean().item(), error, "share", "macro: mean over texts", estimator)
        )
    return metrics
