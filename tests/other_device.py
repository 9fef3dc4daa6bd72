"""Runs the harness on a device that is neither the CPU nor a GPU: ``python -m tests.other_device bf16``.

Tensors of the device have no values (PyTorch's fake tensors), so it finds what a machine without a GPU
otherwise hides: an operation that mixes tensors of the host and of the device, and each place where the host
waits for a value. A value that the host reads is one. The device's autocast lowers matrix products only. The
device belongs to the process, so tests start one of their own.

Prints a JSON object for each family: its name, and the places that waited in a training step, an evaluation
and a generation.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from architectures.kernels.cpu import build as cpu_build
from experiments.evaluation.measure import measure
from experiments.objectives.decoding.sampling import SamplingConfig
from experiments.run import run as run_module
from experiments.run.plan import plan
from experiments.runtime.device import inference
from experiments.runtime.errors import DataError
from experiments.training.parallel.device_mesh import ParallelDims
from experiments.training.trainer import Trainer
from tests.experiments import commands

NAME = "other"
DEVICE = torch.device("privateuseone", 0)  # its name until it is set up
PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "scaled_dot_product_attention")
"""Operations that autocast lowers."""
ANSWERS = {"nonzero", "masked_select", "_unique2", "unique_consecutive", "bincount", "equal"}
"""Operations whose result has a shape that values decide."""
WITHOUT_LOOP = "backbone.experts.dispatch=reference"
"""Experts that need no counts on the host."""
FAMILIES = {
    "decoder": commands.SHORT_TEXT,
    "encoder": commands.SHORT_TEXT,
    "encoder_decoder": commands.RECALL,
    "masked_diffusion": commands.SHORT_TEXT,
    "block_diffusion": commands.SHORT_TEXT,
    "moe": (*commands.SHORT_TEXT, WITHOUT_LOOP),
    "moe_deepseek": (*commands.SHORT_TEXT, WITHOUT_LOOP),
    "mamba": commands.RECALL,
    "mamba2": commands.SHORT_TEXT,
    "mamba3": commands.RECALL,
    "mamba_bidirectional": commands.SHORT_TEXT,
    "s4": commands.RECALL,
    "s4_dplr": commands.RECALL,
    "gla": commands.SHORT_TEXT,
    "deltanet": commands.RECALL,
    "gated_deltanet": commands.RECALL,
    "deltaproduct": commands.RECALL,
    "kda": commands.SHORT_TEXT,
    "rwkv7": commands.RECALL,
    "hybrid": commands.SHORT_TEXT,
}
"""Backbones, each with the overrides of its task."""


class OtherDevice(TorchDispatchMode):
    """Within it operations on the device are those of fake tensors; mixed ones raise AssertionError."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        """Places in this repository where the host waited for the device."""
        self._fake = FakeTensorMode()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        fake = any(isinstance(each, FakeTensor) for each in tree_leaves((args, kwargs)))
        device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        if not fake and (device is None or device.type != NAME):
            return func(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.waits[caller()] += 1
            return torch.ones((), dtype=args[0].dtype).item()
        if name == "_to_copy" and device is not None and device.type == "cpu":
            self.waits[caller()] += 1
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name in ANSWERS:
            self.waits[caller()] += 1
        if name == "nonzero":  # as if all were true
            shape = (args[0].numel(), args[0].dim())
            with self._fake:
                return torch.zeros(shape, dtype=torch.long, device=DEVICE)
        copies = name in ("_to_copy", "copy_")

        def on_device(each: Any) -> Any:
            if not isinstance(each, Tensor) or isinstance(each, FakeTensor):
                return each
            assert copies or each.dim() == 0, f"{func} reads {tuple(each.shape)} of the host: {caller()}"
            return self._fake.from_tensor(each)

        args, kwargs = tree_map(on_device, (args, kwargs))
        with self._fake:
            return func(*args, **kwargs)


class Literals(TorchFunctionMode):
    """Within it tensors made from numbers are copied to the device, which PyTorch does unseen by modes."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], FakeTensor):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            on_device = (torch.tensor(each).to(DEVICE) if isinstance(each, list) else each for each in index)
            return func(args[0], tuple(on_device), *args[2:])
        if func not in (torch.tensor, torch.as_tensor) or "device" not in kwargs:
            return func(*args, **kwargs)
        device = kwargs.pop("device")
        return func(*args, **kwargs).to(device)


def caller() -> str:
    """Return the line of this repository that runs the operation."""
    frames = traceback.extract_stack()
    return next(
        f"{Path(frame.filename).relative_to(commands.ROOT)}: {frame.line}"
        for frame in reversed(frames)
        if frame.filename.startswith((f"{commands.ROOT}/architectures", f"{commands.ROOT}/experiments"))
    )


def set_up() -> None:
    """Give the process the device, and PyTorch what it asks of one."""
    _setup_privateuseone_for_python_backend(NAME)
    module = getattr(torch, NAME)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    module.manual_seed_all = lambda seed: None
    module._is_in_bad_fork = lambda: False
    KEPT.extend(torch.library.Library(namespace, "IMPL") for namespace in ("_", "aten"))
    KEPT[0].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in PRODUCTS:
        KEPT[1].impl(name, lowered(getattr(torch.ops.aten, name)), "AutocastPrivateUse1")
    nn.Module.to = moved  # type: ignore[assignment,method-assign]
    run_module.torch_device = lambda name: DEVICE
    cpu_build.problem = lambda: "a test uses another device"


KEPT: list[torch.library.Library] = []
"""Registrations, which end with their object."""


def lowered(operation: Any) -> Any:
    """Return an operation that computes in bfloat16, as autocast does."""
    key = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
    excluded = torch._C.DispatchKeySet(key)

    def lower(each: Any) -> Any:
        return each.bfloat16() if isinstance(each, Tensor) and each.dtype == torch.float32 else each

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return operation(*tree_map(lower, args), **tree_map(lower, kwargs))

    return call


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """Move a model: PyTorch's own way cannot replace a tied parameter by a fake one."""
    new: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, old in table.items():
                if old is not None and id(old) not in new:
                    new[id(old)] = old.detach().to(device)
                    if isinstance(old, nn.Parameter):
                        new[id(old)] = nn.Parameter(new[id(old)])
                        new[id(old)].__dict__.update(old.__dict__)
                table[name] = None if old is None else new[id(old)]  # type: ignore[assignment]
    return model


def waits(backbone: str, *overrides: str) -> dict[str, dict[str, int]]:
    """Return where a training step, an evaluation and a generation of a model waited, and how often."""
    settings = commands.settings(*commands.TINY, f"backbone={backbone}", *overrides)
    planned, found = plan(settings), {}
    with Literals(), OtherDevice() as mode, tempfile.TemporaryDirectory() as folder:
        strategy = run_module.build(settings, planned, ParallelDims()).strategy
        model, precision = strategy.model, settings.device.precision
        trainer = Trainer(
            settings,
            strategy=strategy,
            task=planned.task,
            folder=Mock(checkpoints=Path(folder)),
            tracker=Mock(),
            console=Mock(),
            flops_per_token=1.0,
            interruptions=Mock(),
            lock=Mock(),
        )
        for stage in ("step", "evaluation", "generation"):
            mode.waits.clear()
            if stage == "step":
                trainer.train_step()
            elif stage == "evaluation":
                measure(
                    model,
                    planned.objective,
                    planned.task,
                    "validation",
                    examples=4,
                    batch_size=4,
                    precision=precision,
                )
            else:
                with inference(model, DEVICE, precision), contextlib.suppress(DataError):
                    planned.objective.sample(
                        model,
                        [[1, 2, 3], [2, 3]],
                        max_tokens=4,
                        generators=[torch.Generator().manual_seed(row) for row in range(2)],
                        sampling=SamplingConfig(),
                    )
            found[stage] = dict(mode.waits)
    return found


def main(precision: str, *backbones: str) -> None:
    set_up()
    for backbone in backbones or FAMILIES:
        result = waits(backbone, *FAMILIES[backbone], f"device.precision={precision}")
        print(json.dumps({"backbone": backbone, **result}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
