"""Checks of the model of a submission, built from the submitted code. Each yields its reasons to reject.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from architectures.backbone import Backbone
from architectures.causality import add_noise, first_leak
from experiments.config.structured import PROJECT
from experiments.evaluation.measure import EVALUATION_SEED, first_examples, measure
from experiments.objectives.objective import Objective, View
from experiments.run.plan import Plan
from experiments.run.run import new_model
from experiments.run.settings import Settings
from experiments.runtime.device import inference
from experiments.tasks.metrics import GENERATED, SAMPLE, WHOLE, Metric
from experiments.tasks.task import Task

SEQUENCES = 16
"""Sequences of the test split that the checks run the model on."""
CPU = torch.device("cpu")


def expected_scores(settings: Settings, run_plan: Plan) -> list[Metric]:
    """Return the score of each evaluation of a run, with the value of the untrained model on two examples.

    Of a text, ``cluster_totals`` has the bytes of all scored examples; it is None if the objective scores
    only a part of them.
    """
    model, scores = new_model(settings, run_plan), []
    for name, objective in {"test": run_plan.objective, **run_plan.extra_evaluations}.items():
        task = objective.task
        totals: list[list[float]] | None = None
        score = measure(
            model, objective, task, "test", examples=2, batch_size=2, precision=settings.device.precision
        )[0]
        if score.scored != GENERATED:
            items = first_examples(task, "test", settings.trainer.test_examples)
            score = replace(score, items=items, scored=WHOLE if items == score.available else SAMPLE)
        if score.name == "bits_per_byte" and objective.full_likelihood and objective.vocabulary.begin:
            totals = [[0.0, float(scored_bytes(task, score.items))]]
        scores.append(replace(score, split=name, cluster_totals=totals))
    return scores


def scored_bytes(task: Task, items: int) -> int:
    """Return the bytes of the scored tokens of the first examples of the test split."""
    total = 0
    for start in range(0, items, SEQUENCES):
        batch = task.batch("test", EVALUATION_SEED, start, min(SEQUENCES, items - start))
        assert batch.bytes_BT is not None
        total += int((batch.bytes_BT * (batch.answer_BT & batch.valid_BT)).sum())
    return total


def model_problems(settings: Settings, run_plan: Plan, model: Backbone | None = None) -> Iterator[str]:
    """Yield what is wrong with the model of a run.

    Args:
        settings: of the run.
        run_plan: of the run.
        model: the trained model; None for one with random weights, so that no part is zero.
    """
    if model is None:
        model = new_model(settings, run_plan)
        add_noise(model, seed=settings.seed)
    counted = sum({p.data_ptr(): p.numel() for p in model.parameters()}.values())
    if counted != (stated := model.parameters_by_part().total):
        yield f"the model has {counted:,} parameters, and states {stated:,}"
    view = evaluated_view(run_plan.objective)
    if view.source_BS is not None or view.clean_BT is not None or run_plan.objective.targets != "tokens":
        return
    with inference(model, CPU, settings.device.precision):
        yield from flop_problems(settings, model, view)
        if model.capabilities.causal and leaks(model, run_plan.objective, view):
            yield "the logits of a position change with later tokens, or with other sequences of the batch"


def flop_problems(settings: Settings, model: Backbone, view: View) -> Iterator[str]:
    """Yield that a model of the user's code takes more matrix products than its ``sequence_flops``."""
    # The class could state another module than that of its file.
    target = str(settings.resolved["backbone"]["_target_"])
    if target.partition(".")[0] in PROJECT:  # where tests count operations
        return
    flops = model.sequence_flops(view.tokens_BT.shape[1])
    counted = max(matrix_product_flops(model, view, training=training) for training in (False, True))
    # PyTorch counts attention over all pairs of positions, also those that a causal mask excludes; and scans
    # in chunks take more products than the recurrence.
    if counted > 1.01 * (flops.linear + 2 * flops.attention + 4 * flops.mixer):
        yield f"a sequence takes {counted:,} FLOPs of matrix products; the model states {flops.total:,}"


def matrix_product_flops(model: Backbone, view: View, *, training: bool) -> int:
    """Return the FLOPs of the matrix products of one more sequence, as PyTorch counts them."""
    counts = []
    model.train(training)
    for sequences in (1, 2):
        with FlopCounterMode(display=False) as counter:
            view.rows(0, sequences).run(model)
        counts.append(counter.get_total_flops())
    model.eval()
    return counts[1] - counts[0]


def evaluated_view(objective: Objective) -> View:
    """Return the first sequences of the test split as the objective evaluates them."""
    count = min(SEQUENCES, objective.task.num_examples("test") or SEQUENCES)
    return objective.answer_view(objective.task.batch("test", EVALUATION_SEED, 0, count))


def leaks(model: Backbone, objective: Objective, view: View) -> bool:
    """Return True if the logits of the objective depend on later tokens or on another sequence."""

    def logits_of(tokens_BT: Tensor) -> Tensor:
        changed = replace(view, tokens_BT=tokens_BT)
        return objective.logits(changed.run(model), changed)

    return first_leak(logits_of, view.tokens_BT, model.vocab_size) is not None
