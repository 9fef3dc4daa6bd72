"""The cells of the tracks that need a GPU run in miniature: the same code path, a thousandth of the size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archbench.analysis.declared.tracks import read_track
from tests.experiments import commands
from tests.tiers import fast_only

GPU, CLUSTER = read_track("gpu"), read_track("cluster")
TEXT = [workload.name for workload in GPU.workloads if workload.offline]
PROBES = [workload.name for workload in GPU.workloads if not workload.offline]
FIRST = "fineweb_125m"
"""In miniature the sizes of the cluster track are alike: every model runs at one, one model at the others."""
CELLS = [
    *(
        f"gpu/{places[number % len(places)]}/{backbone}"
        for places in (TEXT, PROBES)
        for number, backbone in enumerate(GPU.backbones)
    ),
    *(
        f"cluster/{workload.name}/{backbone}"
        for workload in CLUSTER.workloads
        for backbone in (CLUSTER.backbones if workload.name == FIRST else ["decoder"])
    ),
]
"""Each model of the GPU track on one of its texts and on one of its probes, in turn."""


@pytest.mark.parametrize("cell", fast_only(CELLS, CELLS[:1]))
def test_a_cell_runs_in_miniature(cell: str, tmp_path: Path) -> None:
    name, workload, backbone = cell.split("/")
    track = read_track(name)
    own = track.workload(workload)
    words = [*track.miniature, *own.offline, *own.miniature, "budget.tokens=500", "study.tuned=null"]
    choice = (f"{track.group}={workload}", f"backbone={backbone}", f"runs={tmp_path}", *words)
    settings = commands.settings(f"study={track.study}", *choice)
    commands.run_training(settings)
    result = json.loads((settings.folder / "result.json").read_text())
    assert result["status"] == "complete", result["message"]
    assert {"test", *settings.extra_evaluations} <= {metric["split"] for metric in result["metrics"]}
