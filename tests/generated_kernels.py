"""Compiles the Triton kernels that PyTorch generates for a training step, on a machine without a GPU.

    python -m tests.generated_kernels decoder

It runs in PyTorch's CUDA build, in a process that ``tests/cuda_without_driver.py`` gives a GPU and its
compute capability. Inductor compiles the forward and backward pass of each block, and FlexAttention, as on
that GPU; Triton compiles the first configuration of each kernel to PTX, and ptxas to machine code. Nothing is
launched: the model runs operation by operation, on tensors without values.

Prints a JSON object for each case: its name, the targets of the PTX, and the numbers of kernels.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from archbench.architectures.layers.block import Block
from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import build_model
from archbench.experiments.training.parallel.block_wrapping import compile_block
from tests.experiments import commands
from tests.other_device import moved

DEVICE = torch.device("cuda", 0)
FLEX = ("backbone=decoder", "backbone.attention.kernel=flex", "backbone.attention.head_dim=16")
CASES = {
    "decoder": ("backbone=decoder",),
    "decoder, float32": ("backbone=decoder", "device.precision=fp32"),
    "masked diffusion": ("backbone=masked_diffusion",),
    "encoder": ("backbone=encoder",),
    "FlexAttention, causal, soft cap": (*FLEX, "backbone.attention.softcap=20"),
    "FlexAttention, window, ALiBi": (
        *FLEX,
        "backbone.positions.kind=alibi",
        "backbone.attention.window=8",
    ),
}
"""Overrides of each case; the precision is bfloat16 where they do not set it."""

BINARIES: dict[str, Any] = {}
"""Compiled kernels of Triton, by source."""


def set_up() -> None:
    """Compile Inductor's kernels for the GPU of the process where they would be loaded on it."""
    from torch._inductor import config
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner, GPUTarget, triton_helpers
    from triton.runtime import driver

    def precompile(kernel: Any, *_: Any, **__: Any) -> None:
        BINARIES[kernel.fn.src] = kernel._precompile_config(kernel.configs[0]).kernel

    properties: Any = torch.cuda.get_device_properties(0)
    target = GPUTarget("cuda", 10 * properties.major + properties.minor, 32)
    driver.set_active(SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0))
    triton_helpers.set_driver_to_gpu = lambda: None
    CachingAutotuner.precompile = precompile
    config.compile_threads, config.force_disable_caches, config.use_static_cuda_launcher = 1, True, False
    config.shape_padding = config.joint_graph_constant_folding = False  # they compute on the GPU
    torch.compile = functools.partial(torch.compile, backend=compile_only)
    torch.autograd.set_multithreading_enabled(False)  # a thread for the device would outlive Python
    FakeTensorMode.avoid_device_init = True  # type: ignore[assignment,method-assign]


def compile_only(graph: Any, inputs: list[Any]) -> Any:
    """Compile a graph and its gradient by Inductor; return them to be run operation by operation."""
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(traced: Any, examples: list[Any], **options: Any) -> Any:
        compile_fx_inner(copy.deepcopy(traced), examples, **options)
        return make_boxed_func(traced.forward)

    return compile_fx(graph, inputs, inner_compile=inner)


def training_step(*overrides: str) -> None:
    """Run the forward and backward pass of a model with compiled blocks."""
    settings = commands.settings(*commands.TINY, *commands.SHORT_TEXT, "device.precision=bf16", *overrides)
    model, lower = build_model(settings, plan(settings)), settings.device.precision == "bf16"
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("cuda", torch.bfloat16, enabled=lower):
        moved(model, DEVICE)
        for block in [part for part in model.modules() if isinstance(part, Block)]:
            compile_block(block)
        tokens_BT = torch.zeros(4, 64, dtype=torch.long, device=DEVICE)
        logits_BTV = model(tokens_BT).logits_BTV
        F.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT.flatten()).backward()


def compiled() -> dict[str, Any]:
    """Return the targets of the compiled kernels, and how many there are: all, and FlexAttention's."""
    assert all(binary.asm["cubin"] for binary in BINARIES.values())
    found = (re.search(r"\.target (\w+)", binary.asm["ptx"]) for binary in BINARIES.values())
    backward = sum("flex_attention_backward" in source for source in BINARIES)
    return {
        "targets": sorted({target[1] for target in found if target}),
        "kernels": len(BINARIES),
        "flex": sum("flex_attention" in source for source in BINARIES) - backward,
        "flex_backward": backward,
    }


def main(*chosen: str) -> None:
    set_up()
    for name in chosen or CASES:
        torch._dynamo.reset()
        BINARIES.clear()
        training_step(*CASES[name])
        print(json.dumps({"case": name, **compiled()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
