"""One real step of one of several processes: ``python -m tests.experiments.simulate.real_step FILE WORDS``.

The process of rank 0 writes the bytes that it exchanged into FILE.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from experiments.run.build import build
from experiments.run.plan import plan
from experiments.simulate.step import Step
from experiments.simulate.traffic import Traffic
from experiments.training.parallel import collectives
from experiments.training.parallel.device_mesh import make_parallel_dims
from tests.experiments import commands


def main() -> None:
    """Take two steps, and count the second."""
    collectives.start(torch.device("cpu"))
    settings = commands.settings(*sys.argv[2:])
    planned = plan(settings)
    dims = make_parallel_dims(settings.parallel, "cpu", settings.budget)
    strategy = build(settings, planned, dims).strategy
    step = Step(settings, planned, strategy.model, strategy)
    step.make_optimizer()
    step.run()
    with Traffic() as traffic:
        step.run()
    if collectives.is_rank_zero():
        Path(sys.argv[1]).write_text(json.dumps(traffic.bytes))
    collectives.stop()


if __name__ == "__main__":
    main()
