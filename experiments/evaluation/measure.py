"""Evaluation: the metric of a task, with its unit, direction, averaging, likelihood type and error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from architectures.backbone import Backbone
from experiments.objectives.objective import Objective, Score
from experiments.runtime.errors import DataError
from experiments.runtime.precision import inference
from experiments.runtime.seeds import evaluation_seed
from experiments.tasks.bits_per_byte import bits_per_byte, bits_per_byte_metric, nats_to_bits
from experiments.tasks.metrics import Metric
from experiments.tasks.task import Task

EVALUATION_SEED = 0
"""Every run, whatever its seed, is evaluated on the same examples with the same masks."""


FIELDS = ("accuracy_B", "nats_B", "bytes_B")


@dataclass(frozen=True, kw_only=True)
class EvaluationShard:
    """The part of an evaluation that a process has."""

    index: int = 0
    of: int = 1
    reports: bool = True
    """False where another process has the same part, and reports it."""

    def map_examples(self, score: Callable[[int, int], list[Score]], total: int) -> list[Score]:
        """The scores of ``total`` sequences; ``score`` finds those of a range of them.

        Numbers are added up among the processes, each being 0 everywhere but in one, so they are exact.
        Records can be anything and are not sent: every process then scores all sequences.
        """
        if self.of == 1:
            return score(0, total)
        first, end = (total * part // self.of for part in (self.index, self.index + 1))
        own = score(first, end)
        has = torch.tensor(
            [any(s.records for s in own), *(any(getattr(s, f) is not None for s in own) for f in FIELDS)]
        ).int()
        dist.all_reduce(has, dist.ReduceOp.MAX)
        if has[0]:
            return [*score(0, first), *own, *score(end, total)]
        found: dict[str, Any] = {}
        for name in (name for name, there in zip(FIELDS, has[1:].tolist(), strict=True) if there):
            all_N = torch.zeros(total, dtype=torch.float64)
            if self.reports and own:
                all_N[first:end] = torch.cat([getattr(s, name).double().cpu() for s in own])
            dist.all_reduce(all_N)
            found[name] = all_N
        return [Score(**found)]


WHOLE_SPLIT = EvaluationShard()
"""The shard of a process that evaluates alone."""


def measure(
    model: Backbone,
    objective: Objective,
    task: Task,
    split: str,
    *,
    examples: int,
    batch_size: int,
    precision: str,
    before_batch: Callable[[], None] = lambda: None,
    shard: EvaluationShard = WHOLE_SPLIT,
) -> list[Metric]:
    """Every metric on the first ``examples`` of a split (all, if there are fewer), the task's own first.

    ``before_batch`` is called between batches and may raise to end the evaluation early.
    Of several processes each goes through its ``shard``, and all find the same.
    """
    available = task.num_examples(split)
    total = examples if available is None else min(examples, available)
    if total < 2:
        raise DataError(f"the {split} split has {total} examples: at least 2 are needed for an evaluation")
    device = next(model.parameters()).device

    def score(first: int, end: int) -> list[Score]:
        found = []
        for start in range(first, end, batch_size):
            before_batch()
            stop = min(start + batch_size, end)
            batch = task.batch(split, EVALUATION_SEED, start, stop - start)
            generators = [example_generator(split, example) for example in range(start, stop)]
            found.append(objective.evaluate(model, batch, generators))
        return found

    with inference(model, device, precision):
        scores = shard.map_examples(score, total)
    records = [record for score in scores for record in score.records]
    pooled = scores[0].accuracy_B is not None or scores[0].nats_B is not None
    found = [summarise(scores, objective, split)] if pooled else []
    return found + (objective.summarise(records, split) if records else [])


def example_generator(split: str, example: int) -> torch.Generator:
    """The masks of an example follow from its number: not from the run's seed, nor from the batch size."""
    return torch.Generator().manual_seed(evaluation_seed(split, example))


def summarise(scores: list[Score], objective: Objective, split: str) -> Metric:
    """Pools the scores of all sequences."""
    if scores[0].accuracy_B is not None:
        accuracy_N = torch.cat([s.accuracy_B for s in scores if s.accuracy_B is not None])
        return Metric(
            name="answer_accuracy",
            split=split,
            value=accuracy_N.mean().item(),
            unit="share",
            direction="higher",
            averaging="macro: mean over examples of the share of their answers",
            likelihood=None,
            estimator="most likely token at each answer, all answers hidden",
            samples=1,
            standard_error=accuracy_N.std().item() / math.sqrt(len(accuracy_N)),
            items=len(accuracy_N),
        )
    nats_N = torch.cat([s.nats_B for s in scores if s.nats_B is not None])
    bytes_N = torch.cat([s.bytes_B for s in scores if s.bytes_B is not None])
    return bits_per_byte_metric(
        bits_per_byte(nats_N.sum().item(), bytes_N.sum().item()),
        split=split,
        likelihood=objective.likelihood,
        standard_error=nats_to_bits(_ratio_error(nats_N, bytes_N)),
        items=len(nats_N),
    )


def _ratio_error(numerator_N: Tensor, denominator_N: Tensor) -> float:
    """Standard error of a ratio of sums over sequences (linearised)."""
    n = len(numerator_N)
    residual_N = numerator_N - numerator_N.sum() / denominator_N.sum() * denominator_N
    return math.sqrt(residual_N.square().sum().item() * n / (n - 1)) / denominator_N.sum().item()
