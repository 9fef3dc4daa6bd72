"""Perplexities: bits per byte in other units, where in a sequence they are spent, and that of one long text.

Shapes: B batch, T length or window, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.experiments.evaluation.measure import EVALUATION_SEED, first_examples
from archbench.experiments.evaluation.slices import longest_repeats
from archbench.experiments.objectives.finite_outputs import CAUSE
from archbench.experiments.objectives.objective import Objective, at_tokens
from archbench.experiments.runtime.device import inference
from archbench.experiments.runtime.errors import ConfigError, DivergedError
from archbench.experiments.tasks.metrics import Metric, bits_to_nats
from archbench.experiments.tasks.task import Batch, Task
from archbench.experiments.tasks.text.text import Text


def text_rates(metric: Metric, task: Task, batch_size: int) -> dict[str, float]:
    """``metric``, in bits per byte, as perplexity per token, bits per character and perplexity per word.

    Tokens and characters are those of the examples that the metric is of. Words are those of the full split
    (of the published one, where ``task.test_words`` is set), so that tokenizers and windows do not matter.
    A character is a code point of UTF-8. Empty for other metrics; without words if the task is not a corpus.
    """
    if metric.name != "bits_per_byte":
        return {}
    nats_per_byte = bits_to_nats(metric.value)
    tokens = num_bytes = characters = 0
    for start in range(0, metric.items, batch_size):
        batch_args = (metric.split, EVALUATION_SEED, start, min(batch_size, metric.items - start))
        batch = task.batch(*batch_args)
        assert batch.bytes_BT is not None
        scored_BT = batch.answer_BT & batch.valid_BT
        tokens += int(scored_BT.sum())
        num_bytes += int((batch.bytes_BT * scored_BT).sum())
        # All but the first byte of a code point are 10xxxxxx.
        characters += sum(b & 0xC0 != 0x80 for text in task.scored_texts(*batch_args) for b in text)
    rates = {
        "perplexity_per_token": math.exp(nats_per_byte * num_bytes / tokens),
        "bits_per_character": metric.value * num_bytes / characters,
    }
    if isinstance(task, Text):
        nats_per_word = nats_per_byte / task.words_per_byte(metric.split)
        # An untrained model may need more nats for a word than a float can hold as a perplexity.
        rates["perplexity_per_word"] = math.exp(nats_per_word) if nats_per_word < 700 else math.inf
    return rates


SLICES = ("repeated", "other")
"""Of the tokens: those that complete a bigram of the context once more, and all other ones."""


def nats_by_recall(
    model: Backbone,
    objective: Objective,
    split: str,
    *,
    examples: int | None,
    batch_size: int,
    precision: str,
) -> dict[str, tuple[float, int]]:
    """Mean nats per token and their number, of ``repeated`` bigrams (see above) and of the ``other`` tokens.

    Arora et al. 2023 (Zoology, arXiv 2312.04927), table 1, without their second condition, that the bigram
    is rare in the training text. NaN where there are none. Raises ConfigError as ``nats_by_position`` does.
    """
    nats, count = dict.fromkeys(SLICES, 0.0), dict.fromkeys(SLICES, 0)
    for batch, nats_BT, scored_BT in position_nats(
        model, objective, split, "recall=false", examples=examples, batch_size=batch_size, precision=precision
    ):
        repeated_BT = longest_repeats(batch.tokens_BT, 2) == 2
        for name, slice_BT in zip(SLICES, (repeated_BT, ~repeated_BT), strict=True):
            nats[name] += nats_BT[slice_BT & scored_BT].sum().item()
            count[name] += int((slice_BT & scored_BT).sum())
    return {name: (nats[name] / count[name] if count[name] else math.nan, count[name]) for name in SLICES}


def position_nats(
    model: Backbone,
    objective: Objective,
    split: str,
    off: str,
    *,
    examples: int | None,
    batch_size: int,
    precision: str,
) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Batches of a split, the nats (B, T) of each of their tokens, and which are scored; on the CPU.

    Raises ConfigError, which tells to set ``off``, where the objective does not read from left to right or
    the task is not text.
    """
    task, device = objective.task, next(model.parameters()).device
    total = first_examples(task, split, examples)
    with inference(model, device, precision):
        for start in range(0, total, batch_size):
            batch = task.batch(split, EVALUATION_SEED, start, min(batch_size, total - start))
            if objective.likelihood.kind != "exact" or not batch.whole:
                raise ConfigError(
                    f"{off.partition('=')[0]}: loss by position is of text read from left to right "
                    f"(objective=causal_lm); set {off}"
                )
            # Every position of a window, whether it is context elsewhere or not.
            view = objective.answer_view(replace(batch, answer_BT=batch.valid_BT))
            nats_BT = at_tokens(objective.nats_on_host(model, view), batch)
            yield batch, nats_BT, at_tokens(view.weight_BT > 0, batch)


def nats_by_position(
    model: Backbone,
    objective: Objective,
    split: str,
    *,
    stretches: int,
    examples: int | None,
    batch_size: int,
    precision: str,
) -> list[tuple[int, int, float]]:
    """Mean nats per token in equal stretches of the sequence: begin, end (not included), nats.

    Raises ConfigError where the objective does not read from left to right, or the task is no text.
    """
    length = objective.task.sequence_length
    if not 1 <= stretches <= length:
        raise ConfigError(f"stretches={stretches} must be from 1 to {length}, the length of the sequences")
    nats_T, count_T = torch.zeros(length, dtype=torch.float64), torch.zeros(length, dtype=torch.float64)
    for _, nats_BT, scored_BT in position_nats(
        model,
        objective,
        split,
        "stretches=null",
        examples=examples,
        batch_size=batch_size,
        precision=precision,
    ):
        nats_T += nats_BT.sum(0)
        count_T += scored_BT.double().sum(0)
    edges = [length * i // stretches for i in range(stretches + 1)]
    return [
        (begin, end, (nats_T[begin:end].sum() / count_T[begin:end].sum()).item())
        for begin, end in pairwise(edges)
    ]


@dataclass(frozen=True, kw_only=True)
class StridedPerplexity:
    """The perplexity of a text, and how it was cut."""

    perplexity: float
    tokens: int
    """Tokens that the recipe divides by."""
    window: int
    """Tokens in a window."""
    stride: int
    """Tokens between the beginnings of windows."""

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.4f} over {self.tokens} tokens (windows of {self.window} tokens, "
            f"{self.stride} apart; recipe of fixed-length models)"
        )


def strided_perplexity(
    model: Backbone, tokens: Sequence[int], *, window: int | None, stride: int | None, precision: str
) -> StridedPerplexity:
    """Return the perplexity of one long text by the recipe of the ``transformers`` documentation.

    A window slides over the tokens; each scores the tokens that the previous one did not reach. As in the
    recipe (of fixed-length models), the mean loss of a window counts for one token less than it scores,
    whether or not its first token has context. By default windows are as long as the model reads, and do not
    overlap.

    Raises:
        ConfigError: the model does not read from left to right, or the text or a setting does not fit.
        DivergedError: a logit is not finite.
    """
    window = model.max_length if window is None else window
    stride = window if stride is None else stride
    if not model.capabilities.causal:
        raise ConfigError(f"text: {type(model).__name__} does not read from left to right: leave it out")
    if not 2 <= window <= model.max_length:
        raise ConfigError(f"window={window} must be from 2 to {model.max_length}, the length of the model")
    if not 2 <= stride <= window:  # by the recipe, a window that scores one token counts for none
        raise ConfigError(f"stride={stride} must be from 2 to window={window}")
    if len(tokens) < 2:
        raise ConfigError(f"text: it has {len(tokens)} tokens: give at least 2")
    device = next(model.parameters()).device
    nats, counted, reached = 0.0, 0, 0
    with inference(model, device, precision):
        for begin in range(0, len(tokens), stride):
            end = min(begin + window, len(tokens))
            new, reached = end - reached, end
            if new > 1:  # a single token counts for none, and may have no context
                tokens_1T = torch.tensor([tokens[begin:end]], device=device)
                # The first token of a text has no context, so it is read and not scored.
                scored = min(new, end - begin - 1)
                logits_TV = model(tokens_1T).logits_BTV[0, -scored - 1 : -1]
                loss = torch.nn.functional.cross_entropy(logits_TV.float(), tokens_1T[0, -scored:])
                nats += loss.item() * (new - 1)
                counted += new - 1
            if end == len(tokens):
                break
    if not math.isfinite(nats):
        raise DivergedError(f"text: the perplexity is not a finite number; {CAUSE}")
    return StridedPerplexity(
        perplexity=math.exp(nats / counted), tokens=counted, window=window, stride=stride
    )
