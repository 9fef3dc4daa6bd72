"""F51 and F53: values that are not finite, and other batches, at random places of an evaluation."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, Output
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.run.plan import Plan
from archbench.experiments.runtime.errors import DivergedError
from archbench.experiments.tasks.task import Batch
from tests.experiments.evaluation.test_finite_outputs import CASES, planned
from tests.experiments.objectives import toys
from tests.experiments.objectives.diffusion.test_padding import OBJECTIVES, Neighbours, widened
from tests.faults.children import seeds

EACH = 3
"""Cases for each seed."""
BATCHES, BATCH_SIZE = 3, 2
HUGE = 1e9
"""Stands for an infinite value that is subtracted from a logit: its probability is 0 in floats too."""


def scores(run_plan: Plan, model: Backbone, batch_size: int = BATCH_SIZE) -> list[float] | None:
    """Return the values of all metrics, or None where the evaluation has diverged."""
    examples = BATCHES * BATCH_SIZE
    try:
        found = measure(
            model, run_plan.objective, run_plan.task, "validation", examples=examples,
            batch_size=batch_size, precision="fp32",
        )  # fmt: skip
    except DivergedError:
        return None
    return [metric.value for metric in found]


class Spoiler:
    """Puts a value at one random element of what one random forward pass returns."""

    def __init__(self, rng: random.Random, calls: int) -> None:
        self.call, self.place, self.readout = rng.randrange(calls), rng.random(), rng.random() < 0.5
        self.seen, self.value, self.about, self.padding = 0, math.nan, "", False

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Output) -> None:
        self.seen += 1
        if self.seen - 1 != self.call:
            return
        whole = output.readout if self.readout and output.readout is not None else output.logits_BTV
        index = math.floor(self.place * whole.numel())
        place = [int(i) for i in torch.unravel_index(torch.tensor(index), whole.shape)]
        valid_BT = kwargs.get("valid_BT")
        in_row = isinstance(valid_BT, Tensor) and valid_BT.shape == whole.shape[:-1]
        self.padding = bool(in_row) and not valid_BT[tuple(place[:-1])]  # type: ignore[index]
        self.about = f"call {self.call}, {'readout' if whole is output.readout else 'logits'} {place}"
        with torch.no_grad():
            whole[tuple(place)] = self.value


@pytest.mark.full
@seeds(2, recorded=60)
def test_f51_a_value_that_is_not_finite_ends_an_evaluation_or_changes_nothing(seed: int, record: Any) -> None:
    for case in range(EACH):
        rng = random.Random(1000 * seed + case)
        name, value = rng.choice([*CASES]), rng.choice((math.nan, math.inf, -math.inf))
        run_plan, model = planned(*CASES[name])
        calls = Spoiler(random.Random(0), 1)
        counting = model.register_forward_hook(calls, with_kwargs=True)
        calls.call = -1
        before = scores(run_plan, model)
        counting.remove()
        spoiler = Spoiler(rng, calls.seen)
        model.register_forward_hook(spoiler, with_kwargs=True)
        found = []
        for spoiler.value in (value, -HUGE):
            spoiler.seen = 0
            found.append(scores(run_plan, model))
        after, finite = found
        about = f"seed {seed}, case {case}: {name}, {value} in {spoiler.about}: {before}, then {after}"
        assert before is not None, about
        if after is None:
            continue
        assert all(math.isfinite(each) for each in after), about
        if spoiler.padding:
            assert after == pytest.approx(before, rel=1e-5), about
        else:  # a token of probability 0
            assert value == -math.inf, f"{about}: not diverged"
            assert "readout" not in spoiler.about, about
            assert after == pytest.approx(finite, rel=1e-5), f"{about}, {finite} of a finite logit"
    record("F51", "NaN or an infinite value at a random place of an evaluation", EACH, "diverged, or equal")


@pytest.mark.full
@seeds(2, recorded=60)
def test_f53_bounds_of_rows_depend_on_no_other_row_nor_on_their_order(seed: int, record: Any) -> None:
    for case in range(EACH):
        rng = random.Random(1000 * seed + case)
        name = rng.choice([*OBJECTIVES])
        objective, lengths = OBJECTIVES[name], [rng.randint(1, 16) for _ in range(rng.randint(2, 7))]
        about = f"seed {seed}, case {case}: {name}, rows of {lengths} tokens"
        v = objective.vocabulary
        model, batch = Neighbours(v.size), toys.padded_text(lengths, v, seed)
        expected_B = objective.likelihood_score(model, batch, toys.generators(len(lengths), case)).nats_B
        order = rng.sample(range(len(lengths)), len(lengths))
        found_B = torch.full_like(expected_B, math.nan)
        while order:
            size = rng.randint(1, len(order))
            rows, order = order[:size], order[size:]
            part = Batch(**{key: x[rows] if isinstance(x, Tensor) else x for key, x in vars(batch).items()})
            width = max(lengths[row] for row in rows) + rng.randint(0, 5)
            part = widened(part, v.pad, width - max(lengths))
            drawn = toys.generators(len(lengths), case)
            found_B[rows] = objective.likelihood_score(model, part, [drawn[row] for row in rows]).nats_B
        assert found_B.tolist() == pytest.approx(expected_B.tolist(), rel=1e-12), about
    record("F53", "rows of diffusion models in random batches, orders and widths", EACH, "the same bounds")


@pytest.mark.full
@seeds(1, recorded=50)
def test_f53_scores_depend_on_no_batch_size(seed: int, record: Any) -> None:
    rng = random.Random(seed)
    name = rng.choice([*CASES])
    run_plan, model = planned(*CASES[name])
    size = rng.choice((1, 3, 4, 5, 6))
    about = f"seed {seed}: {name}, batches of {size}"
    assert scores(run_plan, model, size) == pytest.approx(scores(run_plan, model), rel=1e-5), about
    record("F53", "evaluations with random batch sizes", 1, "the same scores")
