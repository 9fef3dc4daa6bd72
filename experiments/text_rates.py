"""Bits per byte in other units, and where in a sequence they are spent.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from architectures.backbone import Backbone
from experiments.errors import ConfigError
from experiments.evaluation import EVALUATION_SEED, Metric, inference
from experiments.objectives.objective import Objective
from experiments.tasks.task import Task
from experiments.tasks.text import Text


def text_rates(metric: Metric, task: Task, batch_size: int) -> dict[str, float]:
    """``metric``, in bits per byte, as perplexity per token, bits per character and perplexity per word.

    Tokens and characters are those of the examples that the metric is of. Words are those of the whole split
    (of the published one, where ``task.test_words`` says so), so that tokenizers and windows do not matter.
    A character is a code point of UTF-8. Empty for other metrics; without words where the task is no corpus.
    """
    if metric.name != "bits_per_byte":
        return {}
    nats_per_byte = metric.value * math.log(2)
    leading_V = None
    if task.tokenizer is not None:  # all but the first byte of a code point are 10xxxxxx
        leading_V = torch.tensor([sum(b & 0xC0 != 0x80 for b in text) for text in task.tokenizer.token_bytes])
    tokens = num_bytes = characters = 0
    for start in range(0, metric.items, batch_size):
        batch = task.batch(metric.split, EVALUATION_SEED, start, min(batch_size, metric.items - start))
        assert batch.bytes_BT is not None
        scored_BT = batch.answer_BT & batch.valid_BT
        tokens += int(scored_BT.sum())
        num_bytes += int((batch.bytes_BT * scored_BT).sum())
        if leading_V is not None:
            characters += int(leading_V[batch.tokens_BT[scored_BT]].sum())
    found = {"perplexity_per_token": math.exp(nats_per_byte * num_bytes / tokens)}
    if characters:
        found["bits_per_character"] = metric.value * num_bytes / characters
    if isinstance(task, Text):
        nats_per_word = nats_per_byte / task.words_per_byte(metric.split)
        # A model that knows nothing may need more nats for a word than a float can hold as a perplexity.
        found["perplexity_per_word"] = math.exp(nats_per_word) if nats_per_word < 700 else math.inf
    return found


def nats_by_position(
    model: Backbone,
    objective: Objective,
    split: str,
    *,
    stretches: int,
    examples: int,
    batch_size: int,
    precision: str,
) -> list[tuple[int, int, float]]:
    """Mean nats per token in equal stretches of the sequence: begin, end (not included), nats.

    Raises ConfigError where the objective does not read from left to right, or the task is no text.
    """
    task, length = objective.task, objective.task.sequence_length
    if not 1 <= stretches <= length:
        raise ConfigError(f"stretches={stretches} must lie in 1 to {length}, the length of the sequences")
    total = min(examples, task.num_examples(split) or examples)
    nats_T, count_T = torch.zeros(length, dtype=torch.float64), torch.zeros(length, dtype=torch.float64)
    device = next(model.parameters()).device
    with inference(model, device, precision):
        for start in range(0, total, batch_size):
            batch = task.batch(split, EVALUATION_SEED, start, min(batch_size, total - start))
            if objective.likelihood.kind != "exact" or not batch.whole:
                raise ConfigError(
                    "stretches: loss by position is of text read from left to right (objective=causal_lm); "
                    "set stretches=null"
                )
            view = objective.answer_view(batch).to(device)
            nats_T += objective.nats(view.run(model), view).double().sum(0).cpu()
            count_T += view.weight_BT.double().sum(0).cpu()
    edges = [length * i // stretches for i in range(stretches + 1)]
    return [
        (begin, end, (nats_T[begin:end].sum() / count_T[begin:end].sum()).item())
        for begin, end in pairwise(edges)
    ]
