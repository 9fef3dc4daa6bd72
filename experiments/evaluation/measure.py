"""Evaluation: the metric of a task, with its unit, direction, averaging, likelihood class and error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from architectures.backbone import Backbone
from experiments.data.counter_rng import stream
from experiments.evaluation.shard import ALL, Share
from experiments.objectives.objective import Objective, Score
from experiments.runtime.errors import DataError
from experiments.tasks.metrics import Metric as Metric
from experiments.tasks.task import Task

EVALUATION_SEED = 0
"""Every run, whatever its seed, is evaluated on the same examples with the same masks."""


@contextmanager
def inference(model: nn.Module, device: torch.device, precision: str) -> Iterator[None]:
    """Evaluation mode, no gradients, the precision of training."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast(device, precision):
            yield
    finally:
        model.train(was_training)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def evaluate(
    model: Backbone,
    objective: Objective,
    task: Task,
    split: str,
    *,
    examples: int,
    batch_size: int,
    precision: str,
) -> Metric:
    """The task's metric: the first of those that ``measure`` finds."""
    found = measure(
        model, objective, task, split, examples=examples, batch_size=batch_size, precision=precision
    )
    return found[0]


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
    share: Share = ALL,
) -> list[Metric]:
    """Every metric on the first ``examples`` of a split (all, if there are fewer), the task's own first.

    ``before_batch`` is called between batches and may raise to end the evaluation early.
    Of several processes each goes through its ``share``, and all find the same.
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
        scores = share.divide(score, total)
    records = [record for score in scores for record in score.records]
    pooled = scores[0].accuracy_B is not None or scores[0].nats_B is not None
    found = [summarise(scores, objective, split)] if pooled else []
    return found + (objective.summarise(records, split) if records else [])


def example_generator(split: str, example: int) -> torch.Generator:
    """The masks of an example follow from its number: not from the run's seed, nor from the batch size."""
    return torch.Generator().manual_seed(stream("evaluation", split, example) >> 1)


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
    return Metric(
        name="bits_per_byte",
        split=split,
        value=(nats_N.sum() / bytes_N.sum()).item() / math.log(2),
        unit="bits/byte",
        direction="lower",
        averaging="micro: all bits over all bytes",
        likelihood=objective.likelihood.kind,
        estimator=objective.likelihood.estimator,
        samples=objective.likelihood.samples,
        standard_error=_ratio_error(nats_N, bytes_N) / math.log(2),
        items=len(nats_N),
    )


def _ratio_error(numerator_N: Tensor, denominator_N: Tensor) -> float:
    """Standard error of a ratio of sums over sequences (linearised)."""
    n = len(numerator_N)
    residual_N = numerator_N - numerator_N.sum() / denominator_N.sum() * denominator_N
    return math.sqrt(residual_N.square().sum().item() * n / (n - 1)) / denominator_N.sum().item()
