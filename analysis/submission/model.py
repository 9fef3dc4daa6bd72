"""Checks of the model of a submission, built from the submitted code. Each yields its reasons to reject.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from archbench.architectures.backbone import Backbone
from archbench.architectures.causality import TOLERANCE, add_noise, first_leak
from archbench.experiments.config.old_names import current_name
from archbench.experiments.config.structured import PACKAGE
from archbench.experiments.evaluation.measure import EVALUATION_SEED, first_examples, measure
from archbench.experiments.objectives.objective import Objective, View
from archbench.experiments.run.plan import Plan
from archbench.experiments.run.run import new_model
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.device import inference
from archbench.experiments.tasks.metrics import GENERATED, SAMPLE, WHOLE, Metric
from archbench.experiments.tasks.task import Task
from archbench.experiments.training.loss import Loss

SEQUENCES = 16
"""Sequences of the test split that the checks run the model on."""
UNTRAINED = 0.75
"""Smallest loss of a model before training, relative to that of uniform predictions."""
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
    if (view := evaluated_view(run_plan.objective)) is None:
        return
    yield from training_problems(settings, run_plan.objective, model, view)
    with inference(model, CPU, settings.device.precision):
        yield from flop_problems(settings, model, view)
        if model.capabilities.causal and leaks(model, run_plan.objective, view):
            yield "the logits of a position change with later tokens, or with other sequences of the batch"


def is_user_code(settings: Settings) -> bool:
    """Return True for a model of the user's code; tests check those of the project.

    The class could state another module than that of its file, so the configuration tells.
    """
    return current_name(str(settings.resolved["backbone"]["_target_"])).partition(".")[0] != PACKAGE


def flop_problems(settings: Settings, model: Backbone, view: View) -> Iterator[str]:
    """Yield that a model of the user's code takes more matrix products than its ``sequence_flops``."""
    if not is_user_code(settings):
        return
    counted = max(matrix_product_flops(model, view, training=training) for training in (False, True))
    if counted > 1.01 * most_matrix_products(model, view):
        stated = model.sequence_flops(view.tokens_BT.shape[1]).total
        yield f"a sequence takes {counted:,} FLOPs of matrix products; the model states {stated:,}"


def most_matrix_products(model: Backbone, view: View) -> float:
    """Return the FLOPs of matrix products that PyTorch may count for one sequence, by ``sequence_flops``.

    It counts attention over all pairs of positions, also those that a causal mask excludes; and scans in
    chunks take more products than the recurrence.
    """
    flops = model.sequence_flops(view.tokens_BT.shape[1])
    return flops.linear + 2 * flops.attention + 4 * flops.mixer


def training_problems(settings: Settings, objective: Objective, model: Backbone, view: View) -> Iterator[str]:
    """Yield what a training step of a model of the user's code computes or stores that it does not state."""
    if not is_user_code(settings):
        return
    model = copy.deepcopy(model).eval()
    logits_BTV = objective.logits(view.run(model), view).detach()
    saved = {tensor: tensor.detach().clone() for tensor in changing_tensors(model)}
    counts = [training_flops(settings, objective, model, view.rows(0, rows)) for rows in (1, 2)]
    # Three forward passes, and one more that a model may repeat to save memory.
    if (counted := counts[1] - counts[0]) > 4.04 * (most := most_matrix_products(model, view)):
        yield f"training takes {counted:,} FLOPs of matrix products for a sequence; at most {4 * most:,}"
    with torch.no_grad():
        for tensor, value in saved.items():
            tensor.copy_(value)
        differences_BTV = (objective.logits(view.run(model.eval()), view) - logits_BTV).nan_to_num()
    if differences_BTV.abs().max() > TOLERANCE * logits_BTV.nan_to_num(0.0, 0.0, 0.0).abs().max():
        yield "a training step changes the logits by more than its parameters: the model stores what it reads"


def changing_tensors(model: Backbone) -> list[Tensor]:
    """Return what training may change: parameters, and buffers of layers of the project, such as routers."""
    layers = (layer for layer in model.modules() if is_project_class(type(layer)))
    return [*model.parameters(), *(buffer for layer in layers for buffer in layer.buffers(recurse=False))]


def is_project_class(cls: type) -> bool:
    """Return True for a class of this project, also if others state its module."""
    module = sys.modules.get(cls.__module__)
    return cls.__module__.partition(".")[0] == PACKAGE and getattr(module, cls.__name__, None) is cls


def training_flops(settings: Settings, objective: Objective, model: Backbone, view: View) -> int:
    """Return the FLOPs of the matrix products of one training step without the optimizer."""
    loss = Loss(model.train(), objective, settings.device.precision)
    with FlopCounterMode(display=False) as counter:
        loss(view, view.count_B.sum(), len(view.tokens_BT)).backward()
        model.after_step()
    return counter.get_total_flops()


def pretrained_problems(settings: Settings, run_plan: Plan) -> Iterator[str]:
    """Yield that a model of the user's code has a low loss before training: its weights are not random."""
    view = evaluated_view(run_plan.objective)
    if view is None or not is_user_code(settings):
        return
    model = new_model(settings, run_plan)
    with inference(model, CPU, settings.device.precision):
        loss = (run_plan.objective.nats(view.run(model), view).sum() / view.count_B.sum()).item()
    if loss < UNTRAINED * (uniform := math.log(model.vocab_size)):
        yield f"before training, its loss is {loss:.2f} nats; {uniform:.2f} are those of uniform predictions"


def matrix_product_flops(model: Backbone, view: View, *, training: bool) -> int:
    """Return the FLOPs of the matrix products of one more sequence, as PyTorch counts them."""
    counts = []
    model.train(training)
    for sequences in (1, 2):
        with torch.set_grad_enabled(training), FlopCounterMode(display=False) as counter:
            view.rows(0, sequences).run(model)
        counts.append(counter.get_total_flops())
    model.eval()
    return counts[1] - counts[0]


def evaluated_view(objective: Objective) -> View | None:
    """Return the first sequences of the test split as the objective evaluates them.

    None if the model reads a source or a clean copy too, or predicts no tokens.
    """
    if objective.targets != "tokens":
        return None
    count = min(SEQUENCES, objective.task.num_examples("test") or SEQUENCES)
    view = objective.answer_view(objective.task.batch("test", EVALUATION_SEED, 0, count))
    return view if view.source_BS is None and view.clean_BT is None else None


def leaks(model: Backbone, objective: Objective, view: View) -> bool:
    """Return True if the logits of the objective depend on later tokens or on another sequence."""

    def logits_of(tokens_BT: Tensor) -> Tensor:
        changed = replace(view, tokens_BT=tokens_BT)
        return objective.logits(changed.run(model), changed)

    return first_leak(logits_of, view.tokens_BT, model.vocab_size) is not None
