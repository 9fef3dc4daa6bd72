"""One real step of one of several processes: ``python -m tests.experiments.simulate.real_step FILE WORDS``.

The process of rank 0 writes the bytes that it exchanged into FILE.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from experiments.run.plan import build_model, plan
from experiments.simulate.step import Step
from experiments.simulate.traffic import Traffic
from experiments.training.parallel import collectives
from experiments.training.parallel.device_mesh import make_parallel_dims
from experiments.training.parallel.strategy import Strategy
from tests.experiments import commands


def main() -> None:
    """Take two steps, and count the second."""
    collectives.start(torch.device("cpu"))
    settings = commands.settings(*sys.argv[2:])
    planned = plan(settings)
    model = build_model(settings, planned)
    dims = make_parallel_dims(settings.parallel, "cpu", settings.budget)
    strategy = Strategy(
        dims, model, planned.objective, activation_checkpointing="none", compile_blocks=False,
        precision=settings.device.precision,
    )  # fmt: skip
    step = Step(settings, planned, model, strategy)
    step.make_optimizer()
    step.run()
    with Traffic() as traffic:
        step.run()
    if collectives.is_rank_zero():
        Path(sys.argv[1]).write_text(json.dumps(traffic.bytes))
    collectives.stop()


if __name__ == "__main__":
    main()
