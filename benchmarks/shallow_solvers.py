"""Scores of the shallow baselines of the long-range tasks: the table of docs/reference/long_range.md.

PYTHONPATH=. python benchmarks/shallow_solvers.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.config.structured import component
from archbench.experiments.run.plan import build_task
from archbench.experiments.tasks.long_range import listops, pathfinder
from archbench.experiments.tasks.probes.probe import Probe
from archbench.experiments.tasks.task import Task

KINDS = ("single", "multi_key", "multi_value", "variable_tracking")
CASES = (
    *((name, ()) for name in ("listops_nano", "listops_short", "listops", "pathfinder", "pathfinder_nano")),
    *((name, ()) for name in ("images", "text_source", "text_source_packages", "same_document")),
    *(("needle", (f"task.kind={kind}",)) for kind in KINDS),
)
"""Tasks and what is set."""


def main() -> None:
    # More examples than for the reference lines of a run.
    listops._FIT, listops._SCORED = 4000, 2000
    pathfinder._FIT, pathfinder._SCORED = 512, 512
    print("| task | solver | accuracy |\n|---|---|---|")
    for name, overrides in CASES:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            composed = hydra.compose("evaluate", overrides=["run=none", f"task={name}", *overrides])
        section = OmegaConf.to_container(composed.task)
        task_class, config = component({"task": section}, "task", Task)  # type: ignore[type-abstract]
        task = build_task(task_class, config, name)
        label = " ".join([name, *(override.removeprefix("task.") for override in overrides)])
        for reference in task.guesses() if isinstance(task, Probe) else task.references():
            print(f"| `{label}` | {reference.name} | {reference.value:.3f} |", flush=True)


if __name__ == "__main__":
    assert Path("conf").is_dir(), "run it from the root of the checkout"
    sys.exit(main())
