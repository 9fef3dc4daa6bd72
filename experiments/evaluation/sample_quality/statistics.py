"""Statistics of generated texts: their likelihood under a judge, and their variety.

Shapes: B texts of a batch, N all texts, T tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.objectives.decoding.prefill import pad_right
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.run.load_model import LoadedModel
from archbench.experiments.runtime.device import inference, torch_device
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.metrics import bits_per_byte, jackknife
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The likelihood of some texts under a judge."""

    perplexity: float
    """exp of nats per token of the judge's tokenizer, over all texts."""
    perplexity_error: float
    """Standard error over texts."""
    bits_per_byte: float


def judged(judge: LoadedModel, texts: Sequence[str], device: DeviceConfig, batch_size: int) -> Judgement:
    """Measure the likelihood of texts under a judge, with the tokenizer of the judge.

    A text longer than the judge's context is judged in pieces, each from its beginning.

    Raises:
        DataError: every text is empty.
    """
    pieces = [
        (text_index, tokens[begin : begin + judge.model.max_length])
        for text_index, text in enumerate(texts)
        for tokens in [judge.tokenizer.encode(text)]
        for begin in range(0, len(tokens), judge.model.max_length)
    ]
    if not pieces:
        raise DataError("every text is empty: there is no text to judge")
    nats_N, tokens_N = np.zeros(len(texts)), np.zeros(len(texts))
    objective = CausalLM(CausalLMConfig(), judge.task)
    with inference(judge.model, torch_device(device.name), device.precision):
        for start in range(0, len(pieces), batch_size):
            chunk = pieces[start : start + batch_size]
            batch = _batch([tokens for _, tokens in chunk], judge.task.vocabulary.pad)
            generators = [torch.Generator() for _ in chunk]
            nats_B = objective.likelihood_score(judge.model, batch, generators).nats_B
            assert nats_B is not None
            for (text_index, tokens), nats in zip(chunk, nats_B.tolist(), strict=True):
                nats_N[text_index] += nats
                tokens_N[text_index] += len(tokens)
    non_empty = np.flatnonzero(tokens_N)

    def perplexity(index: np.ndarray) -> float:
        return float(np.exp(nats_N[non_empty][index].sum() / tokens_N[non_empty][index].sum()))

    num_bytes = sum(len(text.encode()) for text in texts)
    return Judgement(
        perplexity=perplexity(np.arange(len(non_empty))),
        perplexity_error=jackknife(perplexity, len(non_empty)) if len(non_empty) > 1 else math.nan,
        bits_per_byte=bits_per_byte(float(nats_N.sum()), num_bytes),
    )


def _batch(rows: Sequence[Sequence[int]], pad: int) -> Batch:
    """Token lists as a batch of text of which every token is scored."""
    tokens_BT, valid_BT = pad_right(rows, pad, torch.device("cpu"))
    valid_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if valid_BT is None else valid_BT
    return Batch(
        tokens_BT=tokens_BT,
        context_BT=tokens_BT,
        answer_BT=valid_BT,
        valid_BT=valid_BT,
        bytes_BT=valid_BT.long(),
        whole=True,
    )


def token_entropy(texts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Mean over texts, and its standard error, of the entropy of the token counts of a text, nats.

    As in the published evaluations of diffusion models (Zheng et al. 2024, arXiv 2409.02908, section 5).
    Empty texts count as 0.
    """
    counts = [np.array(list(Counter(text).values()), dtype=np.float64) for text in texts]
    fractions = [count / count.sum() if len(count) else count for count in counts]
    entropies = np.array([float(-(fraction * np.log(fraction)).sum()) + 0.0 for fraction in fractions])
    error = entropies.std(ddof=1) / math.sqrt(len(entropies)) if len(entropies) > 1 else math.nan
    return float(entropies.mean()), float(error)


def distinct(texts: Sequence[Sequence[int]], order: int) -> float:
    """Different n-grams over all n-grams of all texts; 0 where there are none.

    Li et al. 2016 (arXiv 1510.03055), section 5.1.
    """
    grams = [tuple(text[i : i + order]) for text in texts for i in range(len(text) - order + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
