"""The work of each process of ``test_divided_evaluation``.

For each case: what a model divided by fsdp and a whole one with the same weights score and write.
"""

from __future__ import annotations

from typing import Any

import torch

from archbench.architectures.backbone import Backbone
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.evaluation.shard import ALONE, EvaluationShard
from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import build, build_model
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.device import inference
from archbench.experiments.training.parallel.collectives import is_dtensor
from archbench.experiments.training.parallel.device_mesh import make_parallel_dims

PROMPTS = ([3, 5, 4], [6, 3])


def found(model: Backbone, objective: Objective, shard: EvaluationShard, *, writes: bool) -> dict[str, Any]:
    """Scores of nine examples, three at a time; what follows two prompts."""
    metrics = measure(
        model, objective, objective.task, "test", examples=9, batch_size=3, precision="fp32", shard=shard
    )
    texts: list[list[int]] = []
    if writes:
        generators = [torch.Generator().manual_seed(seed) for seed in range(len(PROMPTS))]
        with inference(model, torch.device("cpu"), "fp32"):
            texts = objective.sample(
                model, PROMPTS, max_tokens=12, generators=generators, sampling=SamplingConfig()
            )
    return {
        "metrics": {metric.name: [metric.value, metric.standard_error] for metric in metrics},
        "texts": texts,
    }


def check(settings: Settings) -> dict[str, Any]:
    planned = plan(settings)
    dims = make_parallel_dims(settings.parallel, "cpu", settings.budget)
    strategy = build(settings, planned, dims).strategy
    model, objective = strategy.model, planned.objective
    writes = model.capabilities.decodes or model.capabilities.blockwise
    with strategy.evaluating():
        divided = found(model, objective, dims.evaluation_shard(), writes=writes)
    gathered = [name for name, x in model.named_parameters() if not is_dtensor(x.data)]
    whole = found(build_model(settings, planned), objective, ALONE, writes=writes)
    return {"divided": divided, "whole": whole, "left gathered": gathered}
