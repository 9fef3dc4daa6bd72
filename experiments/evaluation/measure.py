"""Evaluation: the metric of a task, with its unit, direction, averaging, likelihood type and error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.experiments.evaluation.shard import ALONE, EvaluationShard
from archbench.experiments.evaluation.slices import TokenSlices
from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.objectives.finite_outputs import CAUSE, watched_outputs
from archbench.experiments.objectives.objective import Objective, Score
from archbench.experiments.runtime.device import inference
from archbench.experiments.runtime.errors import DataError, DivergedError
from archbench.experiments.runtime.seeds import evaluation_seed
from archbench.experiments.tasks.metrics import (
    DOCUMENTS,
    GENERATED,
    JACKKNIFE_GROUPS,
    SAMPLE,
    WHOLE,
    Metric,
    Reference,
    bits_per_byte,
    bits_per_byte_metric,
    cluster_totals,
    nats_to_bits,
    ratio_standard_error,
    split_metrics,
)
from archbench.experiments.tasks.task import EXCESS_BITS, STORED_BITS, UNIFORM, Facts, Task

EVALUATION_SEED = 0
"""Seed of evaluation for all seeds of runs: they use the same examples and masks."""

WHOLE_SPLIT_TOKENS = 2**24
"""A split with more tokens than this, the contexts counted, is sampled: at 2**24 tokens, what the sample adds
to the standard error is below 0.01 bits per byte, or 0.5 points of accuracy."""
FIRST_EXAMPLES, MOST_EXAMPLES = 2_000, 10_000
"""Examples of a generated task: enough to bring the standard error to ``POINTS``. ``MOST_EXAMPLES`` is
enough for any accuracy, because no fraction has a standard deviation above 1/2."""
POINTS = 0.005
PROMPTS = 200
"""Prompts that a model completes, where texts are judged as valid or not."""
VALID = "valid_continuations"


def measure(
    model: Backbone,
    objective: Objective,
    task: Task,
    split: str,
    *,
    examples: int | None,
    batch_size: int,
    precision: str,
    before_batch: Callable[[], None] = lambda: None,
    shard: EvaluationShard = ALONE,
    by_slice: bool = False,
) -> list[Metric]:
    """Every metric on a split, the metric of the task first.

    ``examples`` of it are scored, drawn at random by a fixed seed (of texts in pieces, as many texts); None
    for the full split (a sample, where it has more than ``WHOLE_SPLIT_TOKENS``), or for generated tasks
    enough to make the standard error small.
    ``before_batch`` is called between batches and may raise to end the evaluation early.
    Each process scores its ``shard``, and all return the same metrics.
    ``by_slice`` records the contribution of slices of a text (``experiments.evaluation.slices``).

    Raises:
        DivergedError: logits or a metric are not finite. All processes raise it.
    """
    available = task.num_examples(split)
    total = first_examples(task, split, examples)
    if examples is not None and examples < 2:
        raise DataError(f"examples={examples}: give at least 2, or null, for the {split} split")
    if total < 2:
        raise DataError(f"the {split} split has {total} examples: at least 2 are needed for an evaluation")
    device = next(model.parameters()).device
    slices = None
    if by_slice and task.stride is not None:
        slices = TokenSlices(task)

    def score(lowest: int, end: int) -> list[Score]:
        batch_scores = []
        for start in range(lowest, end, batch_size):
            before_batch()
            stop = min(start + batch_size, end)
            batch = task.batch(split, EVALUATION_SEED, start, stop - start)
            generators = [example_generator(split, example) for example in range(start, stop)]
            result = objective.evaluate(model, batch, generators)
            sums_BK = None
            if slices is not None and result.by_token is not None:
                texts = slices.task.window_texts(split, EVALUATION_SEED, start, stop - start)
                sums_BK = slices.sums(batch, result.by_token, texts)
            if batch.true_nats_B is not None and result.nats_B is not None:
                result = replace(result, nats_B=result.nats_B - batch.true_nats_B)
            batch_scores.append(replace(result, cluster_B=batch.cluster_B, by_token=None, slices_BK=sums_BK))
        return batch_scores

    def check_outputs() -> None:
        if shard.any(outputs.found):
            raise DivergedError(f"{split}: the model's outputs are not finite numbers; {CAUSE}")

    with inference(model, device, precision), watched_outputs(model) as outputs:
        scores = shard.map_examples(model, score, 0, total)
        check_outputs()
        if examples is None and available is None:
            scores += shard.map_examples(model, score, total, _enough_examples(scores, total))
            check_outputs()
    records = [record for score in scores for record in score.records]
    pooled = scores[0].accuracy_B is not None or scores[0].nats_B is not None
    metrics = [summarise(scores, objective, split, available)] if pooled else []
    if scores[0].answers_B is not None:
        metrics.append(bits_per_answer(scores, split, available))
    sums_NK = _joined([s.slices_BK for s in scores])
    if slices is not None and len(sums_NK):
        metrics[0] = replace(
            metrics[0], slices=slices.totals(sums_NK, _joined([s.cluster_B for s in scores]))
        )
    metrics += objective.summarise(records, split) if records else []
    if task.knowledge is not None:
        metrics = [*stored_bits(scores, task.knowledge, model.parameters_by_part().total, split), *metrics]
    if split == "test":
        with inference(model, device, precision):
            metrics += valid_continuations(model, objective, task, batch_size)
    check_finite(metrics)
    return [_with_setting(metric, task, available) for metric in metrics]


def check_finite(metrics: Sequence[Metric]) -> None:
    """Raise DivergedError for a metric whose value is not finite."""
    for metric in metrics:
        if not math.isfinite(metric.value):
            raise DivergedError(
                f"the {metric.split} {metric.name} is {metric.value}, no finite number; {CAUSE}"
            )


def stored_bits(scores: list[Score], facts: Facts, parameters: int, split: str) -> list[Metric]:
    """Return the bits of all facts that a model stores, and these for each of its parameters.

    A model stores the information of a fact minus the cross-entropy of its answer. If a part of the split was
    scored, its mean stands for all facts.
    """
    bits_N = facts.bits * facts.per_example - nats_to_bits(_joined([s.nats_B for s in scores]))
    examples = facts.count / facts.per_example
    (total,) = split_metrics(
        {STORED_BITS: lambda index_N: float(bits_N[index_N].mean() * examples)},
        len(bits_N),
        split,
        first=STORED_BITS,
        unit="bits",
        estimator="information minus cross-entropy of the answers, all of them hidden",
    )
    each = replace(
        total,
        name=f"{STORED_BITS}_per_parameter",
        unit="bits/parameter",
        value=total.value / parameters,
        standard_error=total.standard_error / parameters,
    )
    return [total, each]


def valid_continuations(model: Backbone, objective: Objective, task: Task, batch_size: int) -> list[Metric]:
    """Return the fraction of the prompts of a task's test split that a model completes to valid texts.

    Tokens are sampled from the distribution of the model. Empty if the task has no prompts.
    """
    prompts = task.prompts("test", EVALUATION_SEED, PROMPTS)
    if not prompts:
        return []

    continuations = []
    for start in range(0, len(prompts), batch_size):
        rows = prompts[start : start + batch_size]
        continuations += objective.sample(
            model,
            rows,
            max_tokens=task.sequence_length - max(map(len, prompts)),
            generators=[example_generator("test", start + row) for row in range(len(rows))],
            sampling=SamplingConfig(),
            stop=task.stops,
        )
    texts = [[*prompt, *tokens] for prompt, tokens in zip(prompts, continuations, strict=True)]
    is_valid_N = np.array([task.is_valid(text) for text in texts], dtype=np.float64)
    return split_metrics(
        {VALID: lambda index_N: float(is_valid_N[index_N].mean())},
        len(texts),
        "test",
        first=VALID,
        unit="share",
        estimator="completed texts that are valid, sampled at temperature 1",
    )


def first_examples(task: Task, split: str, examples: int | None) -> int:
    """Return how many examples are scored at first; more may follow of a generated task."""
    available = task.num_examples(split)
    if available is None:
        return FIRST_EXAMPLES if examples is None else examples
    most = max(MOST_EXAMPLES, WHOLE_SPLIT_TOKENS // task.sequence_length) if examples is None else examples
    ends_U = task.sample_ends(split)
    if ends_U is None:
        return min(most, available)
    # A number that was asked for is of texts, so that it is the same for every length of their pieces.
    last = min(most, len(ends_U)) - 1 if examples is not None else ends_U.searchsorted(min(most, available))
    return int(ends_U[last])


def _enough_examples(scores: list[Score], count: int) -> int:
    """Return how many examples bring the standard error of a mean accuracy to ``POINTS``.

    ``count`` have been scored. Texts are generated one token at a time: no more of them than these.
    """
    if scores[0].accuracy_B is None:
        return count
    deviation = torch.cat([s.accuracy_B for s in scores if s.accuracy_B is not None]).std().item()
    needed = math.ceil(1.1 * (deviation / POINTS) ** 2)  # a tenth more, as the deviation is an estimate
    return min(max(needed, count), MOST_EXAMPLES)


def _with_setting(metric: Metric, task: Task, available: int | None) -> Metric:
    """Return the metric with the part of the split that it is of, and the windows of text."""
    windows = task.stride is not None and metric.split != "train"
    return replace(
        metric,
        clustered_by=task.clustered_by(metric.split),
        scored=GENERATED if available is None else WHOLE if metric.items == available else SAMPLE,
        available=available,
        lossy_documents=task.lossy_documents(metric.split) or None,
        window=task.sequence_length if windows else None,
        stride=task.stride if windows else None,
    )


def example_generator(split: str, example: int) -> torch.Generator:
    """The masks of an example follow from its number: not from the run's seed, nor from the batch size."""
    return torch.Generator().manual_seed(evaluation_seed(split, example))


def summarise(scores: list[Score], objective: Objective, split: str, available: int | None = None) -> Metric:
    """Pools the scores of all sequences; the split has ``available``, or never ends."""
    accuracy_N = _joined([s.accuracy_B for s in scores])
    items = len(accuracy_N) or sum(len(s.nats_B) for s in scores if s.nats_B is not None)
    cluster_N = _clusters(scores, items)
    if len(accuracy_N):
        metric = Metric(
            name="answer_accuracy",
            split=split,
            value=float(accuracy_N.mean()),
            unit="share",
            direction="higher",
            averaging="macro: mean over examples of the share of their answers",
            likelihood=None,
            estimator="most likely token at each answer, all answers hidden",
            samples=1,
            standard_error=math.nan,
            items=items,
        )
        return _with_errors(metric, accuracy_N, np.ones(items), cluster_N, available)
    nats_N, bytes_N = _joined([s.nats_B for s in scores]), _joined([s.bytes_B for s in scores])
    metric = bits_per_byte_metric(
        bits_per_byte(nats_N.sum(), bytes_N.sum()),
        split=split,
        likelihood=objective.likelihood,
        standard_error=math.nan,
        items=items,
    )
    if objective.task.metric == EXCESS_BITS:
        averaging = "micro: all bits over all tokens"
        metric = replace(metric, name=EXCESS_BITS, unit="bits/token", averaging=averaging)
    has_documents = any(s.cluster_B is not None for s in scores)
    groups = DOCUMENTS if has_documents else JACKKNIFE_GROUPS
    return _with_errors(metric, nats_to_bits(nats_N), bytes_N, cluster_N, available, groups)


def bits_per_answer(scores: list[Score], split: str, available: int | None) -> Metric:
    """Return the cross-entropy of the answers: it still changes where an accuracy stays at chance or at 1."""
    nats_N, answers_N = _joined([s.nats_B for s in scores]), _joined([s.answers_B for s in scores])
    metric = Metric(
        name="bits_per_answer",
        split=split,
        value=nats_to_bits(nats_N.sum()) / answers_N.sum(),
        unit="bits/answer",
        direction="lower",
        averaging="micro: all bits over all answers",
        likelihood=None,
        estimator="cross-entropy of each answer, all answers hidden",
        samples=1,
        standard_error=math.nan,
        items=len(nats_N),
    )
    return _with_errors(metric, nats_to_bits(nats_N), answers_N, _clusters(scores, len(nats_N)), available)


def _clusters(scores: list[Score], items: int) -> NDArray[np.float64]:
    """Return the cluster (N,) of each item; every item is its own where the batches name none."""
    cluster_N = _joined([s.cluster_B for s in scores])
    return cluster_N if len(cluster_N) else np.arange(items, dtype=np.float64)


def _with_errors(
    metric: Metric,
    numerator_N: NDArray[np.float64],
    denominator_N: NDArray[np.float64],
    cluster_N: NDArray[np.float64],
    available: int | None,
    groups: int = JACKKNIFE_GROUPS,
) -> Metric:
    """Return a metric, a ratio of sums over its items, with its standard error.

    The items are a simple random sample of the ``available`` items of the split. The sums of at most
    ``groups`` clusters are stored.
    """
    error, clusters = ratio_standard_error(numerator_N, denominator_N, cluster_N)
    items, sampling = len(numerator_N), None
    if available is not None:
        by_item, _ = ratio_standard_error(numerator_N, denominator_N, np.arange(items))
        sampling = by_item * math.sqrt(max(0.0, 1 - items / available))
    return replace(
        metric,
        standard_error=error,
        clusters=clusters,
        sampling_error=sampling,
        cluster_totals=cluster_totals(numerator_N, denominator_N, cluster_N, groups),
    )


def _joined(parts: list[Tensor | None]) -> NDArray[np.float64]:
    """Return a field of all scores; empty where they do not have it."""
    arrays = [part.double().cpu().numpy() for part in parts if part is not None]
    return np.concatenate(arrays) if arrays else np.zeros(0)


FEW_STEPS = 100
UNTRAINED = 1.25
"""A model with its first weights needs more bits than the uniform code (up to 8% more were measured), so
a run of fewer than ``FEW_STEPS`` steps is allowed this multiple of it."""


def divergence(metric: Metric, references: Sequence[Reference], steps: int) -> str | None:
    """Return the reason why the score of a run shows that it diverged; None if it did not.

    A model that needs more bits than the uniform code, which gives all tokens of the vocabulary the same
    probability, has learned something false. Tasks without such a code have no threshold, and pseudo-
    likelihoods count tokens without text, such as the marks of removed spans.

    Args:
        metric: the score of the run.
        references: those of its task.
        steps: optimizer steps of the run.
    """
    comparable = [] if metric.likelihood == "pseudo" else references
    uniform = next((r for r in comparable if r.name == UNIFORM and r.metric == metric.name), None)
    limit = math.inf if uniform is None else uniform.value * (1 if steps >= FEW_STEPS else UNTRAINED)
    if uniform is not None and metric.value > limit:
        return (
            f"the {metric.split} {metric.name} is {metric.value:.4g}, above the {uniform.value:.4g} of the "
            "uniform code, which knows nothing: lower the learning rate"
        )
    return None
