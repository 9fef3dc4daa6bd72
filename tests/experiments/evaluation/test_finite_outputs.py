"""An evaluation ends if outputs of the model or metrics are not finite: an argmax over NaN is an accuracy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from archbench.architectures.backbone import Backbone, Output
from archbench.experiments.evaluation.measure import check_finite, measure
from archbench.experiments.objectives.finite_outputs import check_logits, watched_outputs
from archbench.experiments.run.plan import Plan, plan
from archbench.experiments.run.run import build_model
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.errors import DivergedError
from archbench.experiments.tasks.metrics import Metric
from tests.experiments import commands
from tests.tiers import fast_only

CASES = {
    "answers": ("backbone=decoder", *commands.RECALL),
    "text": ("backbone=mamba", *commands.SHORT_TEXT),
    "labels": ("backbone=decoder", "task=listops_nano", "objective=classification", "objective.pooling=mean"),
    "classes": ("backbone=encoder", "task=sentences", "objective=sequence_classification"),
    "tags": ("backbone=encoder", "task=tags", "objective=token_classification"),
    "similarity": ("backbone=encoder", "task=similarity", "objective=similarity"),
    "pairs": ("backbone=decoder", "task=pairs", "objective=seq2seq"),
    "diffusion": ("backbone=masked_diffusion", "task=pairs", "objective=masked_diffusion"),
    "uniform": ("backbone=masked_diffusion", *commands.SHORT_TEXT, "objective=uniform_diffusion"),
}


@functools.cache
def chosen(*words: str) -> tuple[Settings, Plan]:
    settings = commands.settings(*commands.TINY, *words)
    return settings, plan(settings)


def planned(*words: str) -> tuple[Plan, Backbone]:
    settings, run_plan = chosen(*words)
    return run_plan, build_model(settings, run_plan)


def evaluate(run_plan: Plan, model: Backbone) -> list[Metric]:
    return measure(
        model, run_plan.objective, run_plan.task, "validation", examples=2, batch_size=2, precision="fp32"
    )


def spoil(model: Backbone, change: Callable[[torch.Tensor], None]) -> None:
    """Let the forward pass return outputs that ``change`` has changed in place."""

    def hook(module: torch.nn.Module, args: object, output: Output) -> None:
        for tensor in (output.logits_BTV, output.readout):
            if tensor is not None:
                change(tensor)

    model.register_forward_hook(hook)


@pytest.mark.parametrize("case", fast_only(CASES, ["answers", "labels"]))
def test_nan_in_evaluation_has_diverged(case: str) -> None:
    run_plan, model = planned(*CASES[case])
    assert all(math.isfinite(metric.value) for metric in evaluate(run_plan, model))
    spoil(model, lambda x_XV: x_XV[-1:].fill_(torch.nan))  # of the last row only
    with pytest.raises(DivergedError, match="not finite"):
        evaluate(run_plan, model)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_logits_have_diverged(value: float) -> None:
    run_plan, model = planned(*CASES["answers"])
    one = value == math.inf  # -inf for a single token is a probability of 0
    spoil(model, lambda x_XV: x_XV[..., :1].fill_(value) if one else x_XV.fill_(value))
    with pytest.raises(DivergedError, match="not finite"):
        evaluate(run_plan, model)


def test_tokens_without_probability_and_padding_may_be_infinite() -> None:
    run_plan, model = planned(*CASES["answers"])
    before = [metric.value for metric in evaluate(run_plan, model)]
    spoil(model, lambda x_XV: x_XV[..., run_plan.task.vocabulary.pad].fill_(-torch.inf))
    assert evaluate(run_plan, model)[0].value == before[0]
    tokens_BT = torch.zeros(2, 5, dtype=torch.int64)
    valid_BT = torch.tensor([[1, 1, 1, 0, 0], [1] * 5], dtype=torch.bool)
    spoil(model, lambda x_XV: x_XV[0, 3:].fill_(torch.nan))
    with watched_outputs(model) as outputs:
        model(tokens_BT, valid_BT=valid_BT)
        assert not outputs.found
        model(tokens_BT)
        assert outputs.found


@pytest.mark.parametrize("beams", [1, 2])
def test_nan_only_in_decoding_has_diverged(beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run_plan, model = planned(*CASES["pairs"], f"objective.num_beams={beams}")
    step = model.step
    monkeypatch.setattr(model, "step", lambda *args: step(*args) * torch.nan)
    with pytest.raises(DivergedError, match="logits that choose a token"):
        evaluate(run_plan, model)


@pytest.mark.full
def test_vectors_of_infinite_length_have_no_cosine() -> None:
    run_plan, model = planned(*CASES["similarity"])
    spoil(model, lambda x_XV: x_XV.sign_().mul_(1e38))
    with pytest.raises(DivergedError, match="is nan"):
        evaluate(run_plan, model)


def test_every_metric_must_be_finite() -> None:
    run_plan, model = planned(*CASES["answers"])
    metrics = evaluate(run_plan, model)
    check_finite(metrics)
    with pytest.raises(DivergedError, match="the validation bits_per_answer is inf"):
        check_finite([metrics[0], replace(metrics[1], value=math.inf)])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_distribution_choose_no_token(value: float) -> None:
    logits_BV = torch.zeros(2, 3)
    logits_BV[0, 1] = -torch.inf
    assert check_logits(logits_BV) is logits_BV
    logits_BV[0] = value
    with pytest.raises(DivergedError):
        check_logits(logits_BV)


SICK = """
import torch
from archbench.architectures.backbones.decoder import Decoder

class Sick(Decoder):
    '''NaN in evaluation only.'''
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        if not self.training:
            output.logits_BTV = output.logits_BTV * torch.nan
        return output
"""


def test_a_run_that_is_nan_in_evaluation_is_recorded_as_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    monkeypatch.syspath_prepend(tmp_path)
    words = (
        *commands.TINY,
        *commands.RECALL,
        "backbone=decoder",
        "backbone._target_=sick.Sick",
        f"runs={tmp_path}",
    )
    words = (*words, "budget.tokens=256", "budget.batch_size=4")
    with pytest.raises(DivergedError) as diverged:
        commands.train(*words)
    assert diverged.value.exit_code == 4
    result = commands.result(commands.settings(*words).folder)
    assert (result["status"], result["metrics"]) == ("diverged", [])
    assert "validation: the model's outputs are not finite" in result["message"]
