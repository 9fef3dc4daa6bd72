"""Measures one backbone's speed, each cell in a fresh process: training steps, prefill, decoding, filling in.

archbench benchmark backbone=mamba contexts=[512,2048] batch_size=8 output=rows.parquet
archbench benchmark backbone=decoder mode=[train] tokens_per_step=16384 memory_limit=4
archbench benchmark backbone=masked_diffusion mode=[sample] contexts=[128] steps=[8,32,128]
archbench benchmark -m backbone=decoder,mamba device.precision=fp32,bf16 output=rows.json

``mode=null`` measures all that a backbone can do. Prefill, decoding and sampling are measured for one
sequence and for ``batch_size``. A cell that runs out of memory or fails is also a row.
``archbench benchmark draw rows=rows.parquet`` draws the rows.
"""

from __future__ import annotations

import sys

from archbench.experiments.config.hydra_app import start

if __name__ == "__main__":  # before the imports below: see archbench.experiments.config.hydra_app
    start("archbench.experiments.benchmark.__main__.benchmark", "benchmark")
    sys.exit()

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from archbench.architectures.backbone import Backbone
from archbench.experiments.benchmark.grid import Benchmark, BenchmarkConfig
from archbench.experiments.benchmark.results import append, check_file, render
from archbench.experiments.benchmark.subprocess_runner import measure
from archbench.experiments.config.schema import DeviceConfig, ScaleConfig
from archbench.experiments.config.sections import plain_tree, with_target
from archbench.experiments.config.structured import component, typed
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.runtime.console import print_tables
from archbench.experiments.runtime.errors import ConfigError, OutOfMemoryError, RunError


def benchmark(cfg: DictConfig) -> None:
    """Measures all cells, appends each row when it is known, prints the table."""
    plan = read(cfg)
    output = None if plan.request.output is None else Path(plan.request.output)
    if output is not None:
        check_file(output)
    rows = []
    for cell in plan.cells():
        rows.append(measure(plan, cell))
        if output is not None:
            append(output, rows[-1])
    print_tables(render(rows), keys=3)
    bad = [row for row in rows if row["status"] != "complete" and not answers(row)]
    for row in bad:
        kind = OutOfMemoryError if row["status"] == "oom" else RunError
        raise kind(
            f"{len(bad)} of {len(rows)} cells failed, the first mode={row['mode']} context={row['context']} "
            f"batch_size={row['batch_size']}: {row['message']}"
        )


def answers(row: dict[str, Any]) -> bool:
    """Return True if a row without a measurement is a valid answer: that no batch size fits."""
    return row["batch_choice"] == "largest" and row["status"] == "oom"


def read(cfg: DictConfig) -> Benchmark:
    """The benchmark of a composed configuration. Raises ConfigError."""
    tree = plain_tree(cfg)
    cls, config = component(tree, "backbone", Backbone)  # type: ignore[type-abstract]
    form, settings = component(tree, "objective", Objective)  # type: ignore[type-abstract]
    objective = form.for_backbone(cls.capabilities), settings
    scale = typed(ScaleConfig, with_target(tree["scale"]), "scale")
    device = typed(DeviceConfig, tree["device"], "device")
    groups = ("backbone", "scale", "device", "objective")
    request = typed(BenchmarkConfig, {key: value for key, value in tree.items() if key not in groups}, "")
    try:
        return Benchmark(cls, config, objective, scale, device, request)
    except ConfigError:
        raise
    except ValueError as error:  # incompatible widths
        raise ConfigError(f"backbone: {error}") from None
