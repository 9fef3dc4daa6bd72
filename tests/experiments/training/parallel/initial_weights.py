"""The work of each process of ``test_initial_shards``.

For each case: the tensors that differ from those of a process that builds the whole model, and the MiB that
building the parts took at most. These are measured by the command, ``python -m ... FILE CASES``, in a process
that does not share memory with tests. Each case is there a list of words, joined by commas.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone
from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import build, build_model
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.training.parallel import collectives
from archbench.experiments.training.parallel.collectives import is_dtensor
from archbench.experiments.training.parallel.device_mesh import make_parallel_dims
from archbench.experiments.training.parallel.initial_shards import DividedStart
from archbench.experiments.training.parallel.strategy import ATTRIBUTES
from tests.experiments import commands


def whole(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def tensors(model: Backbone) -> dict[str, Tensor]:
    return {name: whole(x) for name, x in (*model.named_parameters(), *model.named_buffers())}


def optimized(parameter: nn.Parameter) -> dict[str, Any]:
    return {name: getattr(parameter, name, None) for name in ATTRIBUTES}


def resident(field: str) -> float:
    """MiB of memory of this process: ``VmRSS`` now, ``VmHWM`` at most since ``forget_peak``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def check(settings: Settings) -> dict[str, Any]:
    planned = plan(settings)
    dims = make_parallel_dims(settings.parallel, "cpu", settings.budget)
    forget_peak()
    before = resident("VmRSS")
    built = build(settings, planned, dims)
    mebibytes = resident("VmHWM") - before
    ours, alone = tensors(built.strategy.model), build_model(settings, planned)
    expected = tensors(alone)
    attributes = [
        name
        for name, parameter in alone.named_parameters()
        if optimized(parameter) != optimized(built.strategy.model.get_parameter(name))
    ]
    return {
        "same names": ours.keys() == expected.keys(),
        "different": [name for name, x in expected.items() if not torch.equal(ours[name], x)],
        "other attributes": attributes,
        "same kernels": built.kernels == alone.kernels(),
        "divided": sum(is_dtensor(x.data) for x in built.strategy.model.parameters()),
        "mebibytes": mebibytes,
    }


class Viewing(nn.Module):
    """Initialises its weight through a view, which a divided tensor does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))
        if not self.weight.is_meta:
            with torch.no_grad():
                self.weight[0].fill_(1.0)
                self.weight.mul_(2.0)


def write_through_a_view() -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def empty() -> Viewing:
        with torch.device("meta"):
            return Viewing()

    start = DividedStart(empty, Viewing)  # type: ignore[arg-type]
    fully_shard(start.model, mesh=init_device_mesh("cpu", (2,)))
    try:
        start.fill(torch.device("cpu"))
    except ConfigError as error:
        return {"error": str(error)}
    return {"error": None}


def main() -> None:
    collectives.start(torch.device("cpu"))
    found = {case: check(commands.settings(*case.split(","))) for case in sys.argv[2:]}
    if collectives.is_rank_zero():
        Path(sys.argv[1]).write_text(json.dumps(found))
    collectives.stop()


if __name__ == "__main__":
    main()
