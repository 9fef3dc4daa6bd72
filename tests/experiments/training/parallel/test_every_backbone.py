"""Every backbone under fsdp: initial weights, loss and gradients are those of the whole model.

The group has one process, this one: parameters are divided tensors as among many, in one part.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from archbench.architectures import mixers
from archbench.experiments.objectives.objective import View
from archbench.experiments.run.plan import Plan, plan
from archbench.experiments.run.run import build
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.training.parallel.collectives import is_dtensor
from archbench.experiments.training.parallel.device_mesh import ParallelDims
from archbench.experiments.training.parallel.strategy import Strategy
from tests.backbones import SOLVED
from tests.experiments import commands
from tests.tiers import fast_only


@pytest.fixture(scope="module")
def fsdp() -> Iterator[ParallelDims]:
    """The layout of a group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    yield ParallelDims(strategy="fsdp", mesh=mesh, data_group=mesh["data"].get_group())
    dist.destroy_process_group()


def gradients(strategy: Strategy, view: View) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    with strategy.accumulating(last=True):
        strategy.loss(view, view.count_B.sum(), len(view.tokens_BT)).backward()
    strategy.finish_gradients()
    return {
        name: parameter.grad.full_tensor() if is_dtensor(parameter.grad) else parameter.grad
        for name, parameter in strategy.model.named_parameters()
        if parameter.grad is not None
    }


def settings_of(backbone: str) -> tuple[Settings, Plan]:
    """Return the settings of a small model: of text, or of classes where its YAML is for these."""
    words = (*commands.TINY, *f"backbone={backbone} device.kernels=torch".split())
    try:
        settings = commands.settings(*words, *commands.RECALL)
    except ConfigError:
        settings = commands.settings(*words, "task=listops_nano")
    return settings, plan(settings)


MIXERS = [path.stem for path in sorted(Path(mixers.__file__).parent.glob("[!_]*.py"))]
HYBRIDS = [f"hybrid backbone.layers=[{mixer},attention]" for mixer in MIXERS]


@pytest.mark.parametrize("backbone", fast_only([*SOLVED, *HYBRIDS], ["decoder", "rwkv7"]))
def test_divided_weights_and_gradients_are_those_of_the_whole(backbone: str, fsdp: ParallelDims) -> None:
    settings, run_plan = settings_of(backbone)
    whole = build(settings, run_plan, ParallelDims()).strategy
    divided = build(settings, run_plan, fsdp).strategy
    assert all(is_dtensor(parameter.data) for parameter in divided.model.parameters())
    stored = divided.model.state_dict()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(
            stored[name].full_tensor() if is_dtensor(stored[name]) else stored[name], tensor
        ), name
    batch = run_plan.task.batch("train", 0, 0, 2)
    view = run_plan.objective.view(batch, torch.Generator().manual_seed(0))
    expected, found = gradients(whole, view), gradients(divided, view)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=lambda said, name=name: f"{name}: {said}")
