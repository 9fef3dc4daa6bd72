"""Metrics of generated texts: BLEU by sacrebleu, ROUGE by rouge-score, exact match."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib import metadata

import numpy as np

from archbench.experiments.tasks.metrics import Metric, jackknife

ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
"""Our names and those of the rouge-score package."""
ROUGE_TOKENS = "tokens of Unicode letters, numbers and emoji, one by one in scripts without spaces"
"""Description of ``rouge_tokens`` in the records of scores."""
LETTER, MARK, SINGLE, SEPARATOR, IGNORED = "letter", "mark", "single", "separator", "ignored"
JOINERS = "\u200c\u200d"
"""The zero-width characters by which letters of a word do or do not join."""
UNSPACED = (
    "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO", "YI SYLLABLE",
    "TANGUT", "NUSHU", "KHITAN", "HENTAIGANA",
    "THAI ", "LAO ", "KHMER", "MYANMAR", "TAI LE ", "NEW TAI LUE", "TAI THAM", "TAI VIET", "AHOM",
    "JAVANESE", "BALINESE", "BRAHMI", "GRANTHA", "DIVES AKURU", "BATAK", "CHAM ", "MAKASAR", "KAWI",
    "BUGINESE", "REJANG",
)  # fmt: skip
"""How the Unicode names of the letters of scripts without spaces between words begin: ideographs, kana, and
those of the line-break classes SA, AK, AP and AS (Unicode Standard Annex 14)."""
INVISIBLE = ("VARIATION SELECTOR", "MONGOLIAN FREE VARIATION SELECTOR", "COMBINING GRAPHEME JOINER")
"""How the names of marks begin that have no glyph."""
PICTOGRAPHS = (range(0x2300, 0x2400), range(0x2600, 0x27C0), range(0x2B00, 0x2C00), range(0x1F000, 0x20000))
"""Blocks of emoji. Other symbols, such as those of currencies and trade marks, are no tokens."""
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
    """ROUGE-1, ROUGE-2 and ROUGE-L of each text, F-measure in 0..1 (Lin 2004), without stemming.

    The tokenizer of rouge-score knows the letters a to z and digits only. The one here gives the same tokens
    for texts in ASCII.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE.values()), tokenizer=_RougeTokenizer())
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {
        name: np.array([score[rouge_name].fmeasure for score in scores]) for name, rouge_name in ROUGE.items()
    }


class _RougeTokenizer:
    """The tokenizer that rouge-score calls."""

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        return rouge_tokens(text)


def rouge_tokens(text: str) -> list[str]:
    """Return runs of letters, numbers and their marks, in lower case and NFC.

    A letter of a script without spaces between words is a token, with its marks; so is an emoji. Characters
    without a glyph, such as soft hyphens, are left out.
    """
    tokens: list[str] = []
    previous = SEPARATOR
    visible = "".join(character for character in text if _kind(character) != IGNORED)
    for character in unicodedata.normalize("NFC", visible.lower()):
        if character in JOINERS and previous != LETTER:
            continue
        kind = _kind(character)
        if (kind in (LETTER, MARK) and previous == LETTER) or (kind == MARK and previous == SINGLE):
            tokens[-1] += character
            continue
        if kind in (LETTER, SINGLE):
            tokens.append(character)
        previous = SEPARATOR if kind == MARK else kind
    return tokens


@cache
def _kind(character: str) -> str:
    """Return the part that a character has in tokens."""
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    if category[0] == "M" or character in JOINERS:
        return IGNORED if name.startswith(INVISIBLE) else MARK
    if category == "Cf":
        return IGNORED
    if category[0] in "LN" or name.startswith("BRAILLE PATTERN DOTS"):
        return SINGLE if name.startswith(UNSPACED) else LETTER
    if any(ord(character) in block for block in PICTOGRAPHS) and category in ("So", "Sk"):
        return MARK if category == "Sk" else SINGLE  # modifiers of emoji
    return SEPARATOR


def text_metrics(texts: Sequence[str], references: Sequence[str], split: str, search: str) -> list[Metric]:
    """All metrics of the texts of a split; ``search`` describes how they were generated."""
    value, error, signature = bleu(texts, references)
    exact_N = np.array([text == reference for text, reference in zip(texts, references, strict=True)], float)
    package = f"rouge-score {metadata.version('rouge-score')}, F-measure, no stemming, {ROUGE_TOKENS}"
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
