"""Real steps of one of several processes, which tests compare with simulated ones."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from archbench.architectures.fast_paths import switched_off
from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import build
from archbench.experiments.run.settings import Settings
from archbench.experiments.simulate.step import Step
from archbench.experiments.simulate.traffic import Traffic
from archbench.experiments.training.parallel.device_mesh import make_parallel_dims


def steps(settings: Settings) -> tuple[dict[str, int], int]:
    """Take three steps: the first makes the moments, the second is counted, the third is weighed.

    Returns:
        The bytes that this process exchanged, and the most that its tensors took, as PyTorch's allocator
        reported it to the profiler.
    """
    with switched_off("a simulation has no compiled kernels"):
        return measured_steps(settings)


def measured_steps(settings: Settings) -> tuple[dict[str, int], int]:
    planned = plan(settings)
    dims = make_parallel_dims(settings.parallel, "cpu", settings.budget)
    strategy = build(settings, planned, dims).strategy
    step = Step(settings, planned, strategy.model, strategy)
    step.make_optimizer()
    step.run()
    with Traffic() as traffic:
        step.run()
    held = kept_bytes(step)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step.run()
    return traffic.bytes, held + risen_bytes(profiler)


def kept_bytes(step: Step) -> int:
    """The bytes of this process's weights, buffers and moments, which stand between two steps."""
    states = [value for state in step.optimizer.state.values() for value in state.values()]
    tensors = [*step.model.parameters(), *step.model.buffers(), *(s for s in states if isinstance(s, Tensor))]
    return sum((x.to_local() if isinstance(x, DTensor) else x).nbytes for x in tensors)


def risen_bytes(profiler: profile) -> int:
    """The most by which what is allocated rose over what it was at the beginning."""
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()  # type: ignore[attr-defined]  # missing from the stub
        highest = max(highest, now)
    return highest
