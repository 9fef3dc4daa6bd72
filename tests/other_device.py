"""Runs the harness on a device that is neither the CPU nor a GPU.

    python -m tests.other_device other families bf16

The device is ``other``, which PyTorch's CPU build has too, or ``cuda`` in the CUDA build, in a process that
``tests/cuda_without_driver.py`` gives a GPU. Its tensors have no values (PyTorch's fake tensors), so it finds
what a machine without a GPU otherwise hides: an operation that mixes tensors of the host and of the device,
and each place where the host waits for a value. A value that the host reads is one. The autocast of ``other``
lowers matrix products only. The device belongs to the process, so tests start one of their own.

Prints a JSON object for each case: its name, and the places that waited in a training step, an evaluation and
a generation.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention.flex_attention import BlockMask
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import archbench
from archbench.architectures import fast_paths
from archbench.architectures.kernels import fla
from archbench.architectures.kernels import mamba_ssm as backend
from archbench.architectures.layers.attention import functional
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.run import run as run_module
from archbench.experiments.run.plan import plan
from archbench.experiments.runtime.device import inference
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.training.parallel.device_mesh import ParallelDims
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands

DEVICE = torch.device("meta")  # until it is set up
PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "scaled_dot_product_attention")
"""Operations that autocast lowers."""
ANSWERS = {"nonzero", "masked_select", "_unique2", "unique_consecutive", "bincount", "equal"}
"""Operations whose result has a shape that values decide."""
WITHOUT_LOOP = "backbone.experts.dispatch=reference"
"""Experts that need no counts on the host."""
FAMILIES = {
    "decoder": ("backbone=decoder", *commands.SHORT_TEXT),
    "encoder": ("backbone=encoder", *commands.SHORT_TEXT),
    "encoder_decoder": ("backbone=encoder_decoder", *commands.RECALL),
    "masked_diffusion": ("backbone=masked_diffusion", *commands.SHORT_TEXT),
    "block_diffusion": ("backbone=block_diffusion", *commands.SHORT_TEXT),
    "moe": ("backbone=moe", *commands.SHORT_TEXT, WITHOUT_LOOP),
    "moe_deepseek": ("backbone=moe_deepseek", *commands.SHORT_TEXT, WITHOUT_LOOP),
    "mamba": ("backbone=mamba", *commands.RECALL),
    "mamba2": ("backbone=mamba2", *commands.SHORT_TEXT),
    "mamba3": ("backbone=mamba3", *commands.RECALL),
    "mamba_bidirectional": ("backbone=mamba_bidirectional", *commands.SHORT_TEXT),
    "s4": ("backbone=s4", *commands.RECALL),
    "s4_dplr": ("backbone=s4_dplr", *commands.RECALL),
    "gla": ("backbone=gla", *commands.SHORT_TEXT),
    "deltanet": ("backbone=deltanet", *commands.RECALL),
    "gated_deltanet": ("backbone=gated_deltanet", *commands.RECALL),
    "deltaproduct": ("backbone=deltaproduct", *commands.RECALL),
    "kda": ("backbone=kda", *commands.SHORT_TEXT),
    "rwkv7": ("backbone=rwkv7", *commands.RECALL),
    "hybrid": ("backbone=hybrid", *commands.SHORT_TEXT),
}
OBJECTIVES = {
    "any_order": ("backbone=masked_diffusion", "objective=any_order", *commands.SHORT_TEXT),
    "classification": ("backbone=decoder", "objective=classification", "task=listops_nano"),
    "classification, bidirectional": ("backbone=encoder", "objective=classification", "task=listops_nano"),
    "denoising": ("backbone=encoder_decoder", "objective=denoising", *commands.SHORT_TEXT),
    "infilling, causal": ("backbone=decoder", "task=infilling_fim"),
    "infilling, masked": ("backbone=encoder", "task=infilling"),
    "infilling, diffusion": ("backbone=masked_diffusion", "task=infilling"),
    "multi_token": ("backbone=decoder", "objective=multi_token", *commands.SHORT_TEXT),
    "prefix_lm": ("backbone=decoder", "objective=prefix_lm", *commands.SHORT_TEXT),
    "prefix_lm, encoder-decoder": ("backbone=encoder_decoder", "objective=prefix_lm", *commands.SHORT_TEXT),
    "sentence_pairs": (
        "backbone=encoder",
        "objective=sentence_pairs",
        "backbone.embedding.num_segments=2",
        *commands.SHORT_TEXT,
    ),
    "seq2seq, causal": ("backbone=decoder", "objective=seq2seq", "task=pairs", "task.max_target=8"),
    "seq2seq": ("backbone=encoder_decoder", "objective=seq2seq", "task=pairs", "task.max_target=8"),
    "sequence_classification": ("backbone=encoder", "objective=sequence_classification", "task=sentences"),
    "similarity": ("backbone=encoder", "objective=similarity", "task=similarity"),
    "span_corruption": (
        "backbone=encoder_decoder",
        "objective=span_corruption",
        "task=text",
        "task.sequence_length=70",
        "objective.source_length=64",
    ),
    "token_classification": ("backbone=encoder", "objective=token_classification", "task=tags"),
    "ul2": ("backbone=encoder_decoder", "objective=ul2", *commands.SHORT_TEXT),
    "uniform_diffusion": (
        "backbone=masked_diffusion",
        "objective=uniform_diffusion",
        "backbone.time_embedding=true",
        *commands.SHORT_TEXT,
    ),
    "text answers": ("backbone=decoder", "task=needle", "budget.tokens=4096"),
}
OPTIONS = {
    "alibi": ("backbone=decoder", "backbone.positions.kind=alibi"),
    "relative bias": ("backbone=decoder", "backbone.positions.kind=relative"),
    "windows, sinks": (
        "backbone=decoder",
        "backbone.attention.sinks=true",
        "backbone.attention.window=8",
        "backbone.attention.layers=[local,global]",
    ),
    "softcap, qk_norm, gate": (
        "backbone=decoder",
        "backbone.attention.softcap=20",
        "backbone.attention.qk_norm=head",
        "backbone.attention.output_gate=true",
    ),
    "dropout": ("backbone=encoder", "backbone.attention.dropout=0.1"),
    "canon": ("backbone=decoder", "backbone.canon=ABCD"),
    "canon, mamba": ("backbone=mamba", "backbone.canon=AB"),
    "canon, encoder": ("backbone=encoder", "backbone.canon=ABCD"),
    "loops": ("backbone=decoder", "backbone.loops=2"),
    "mixture_of_depths": ("backbone=mixture_of_depths",),
    "value_residual": ("backbone=decoder", "backbone.attention.value_residual=true"),
    "forgetting attention": ("backbone=forgetting_attention",),
    "differential attention": ("backbone=diff_attention",),
    "latent attention": (
        "backbone=decoder",
        "backbone.attention.num_kv_heads=null",
        "backbone.attention.latent.kv_rank=8",
    ),
    "paged cache": ("backbone=decoder", "backbone.attention.cache=paged"),
    "int8 cache": ("backbone=decoder", "backbone.attention.cache=int8"),
    "packed documents": ("backbone=decoder", "objective.separate_documents=true"),
    "packed documents, FlexAttention": (
        "backbone=decoder",
        "objective.separate_documents=true",
        "backbone.attention.kernel=flex",
        "backbone.attention.head_dim=16",
        "backbone.positions.kind=alibi",
    ),
    "FlexAttention": (
        "backbone=decoder",
        "backbone.attention.kernel=flex",
        "backbone.attention.head_dim=16",
        "backbone.attention.softcap=20",
    ),
    "packed documents, hybrid": (
        "backbone=hybrid",
        "backbone.layers=[mamba,mamba2,gla,kda]",
        "objective.separate_documents=true",
    ),
    "hybrid of all mixers": (
        "backbone=hybrid",
        "backbone.layers=[mamba,mamba2,mamba3,gla,deltanet,gated_deltanet,kda,deltaproduct,mlstm,rwkv7,s4,attention]",
    ),
    "parallel heads": ("backbone=falcon_h1",),
    "switch": ("backbone=switch", WITHOUT_LOOP),
    "experts, capacity": ("backbone=moe", WITHOUT_LOOP, "backbone.experts.capacity=8"),
    "experts, padded": ("backbone=moe", "backbone.experts.dispatch=padded"),
    "experts, grouped": (
        "backbone=moe",
        "backbone.experts.dispatch=grouped",
        "backbone.d_model=32",
        "backbone.d_ff=32",
        "scale.targets.non_embedding=31136",
    ),
    "muon, ema": ("backbone=decoder", "optimizer=muon", "optimizer.ema=0.9"),
    "nadam, mup": ("backbone=decoder", "optimizer=nadam", "optimizer.mup_base_width=16"),
    "sgd": ("backbone=decoder", "optimizer=sgd"),
    "activation checkpointing": ("backbone=decoder", "parallel.activation_checkpointing=block"),
    "micro-batches": ("backbone=decoder", "budget.micro_batch_size=3"),
}
CASES = {"families": FAMILIES, "objectives": OBJECTIVES, "options": OPTIONS}
"""Overrides of each case, by group.

``unpad`` and ``experts.dispatch=loop`` are none: their shapes follow from values.
"""


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
        if not fake and (device is None or device.type != DEVICE.type):
            return func(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.waits[caller()] += 1
            return torch.ones((), dtype=args[0].dtype).item()
        if name == "_to_copy" and device is not None and device.type == "cpu":
            self.waits[caller()] += 1
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        masked = name in ("index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in ANSWERS or (masked and args[2].numel() > 1):  # the host counts what a mask selects
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
    packages = Path(archbench.__file__).parent
    return next(
        f"{Path(frame.filename).relative_to(packages)}: {frame.line}"
        for frame in reversed(frames)
        if frame.filename.startswith((f"{packages}/architectures", f"{packages}/experiments"))
    )


def set_up(name: str) -> None:
    """Give the process the device, and PyTorch what it asks of one."""
    global DEVICE
    torch.autograd.set_multithreading_enabled(False)  # a thread for the device would outlive Python
    if name == "cuda":
        _without_a_driver()
    else:
        _register(name)
    DEVICE = torch.device(name, 0)
    nn.Module.to = moved  # type: ignore[assignment,method-assign]
    run_module.torch_device = lambda name: DEVICE
    functional._compiled_flex = lambda: dense_flex_attention
    fast_paths._off = "a test uses another device"


def _without_a_driver() -> None:
    """Keep PyTorch's CUDA build from what a GPU would have to do, and from Triton's kernels."""
    FakeTensorMode.avoid_device_init = True  # type: ignore[assignment,method-assign]
    Tensor.pin_memory = lambda self: self  # type: ignore[assignment,method-assign]
    torch.cuda.reset_peak_memory_stats = torch.cuda.empty_cache = lambda *_: None  # type: ignore[assignment]
    torch.cuda.max_memory_allocated = lambda *_: 0  # type: ignore[assignment]
    backend.DEVICES = fla.DEVICES = ("none",)


def _register(name: str) -> None:
    """Add a device to PyTorch, with an autocast."""
    _setup_privateuseone_for_python_backend(name)
    module = getattr(torch, name)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    module.manual_seed_all = lambda seed: None
    module._is_in_bad_fork = lambda: False
    KEPT.extend(torch.library.Library(namespace, "IMPL") for namespace in ("_", "aten"))
    KEPT[0].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in PRODUCTS:
        KEPT[1].impl(name, lowered(getattr(torch.ops.aten, name)), "AutocastPrivateUse1")


def dense_flex_attention(
    q_BHTE: Tensor,
    k_BGSE: Tensor,
    v_BGSE: Tensor,
    *,
    score_mod: Callable[..., Tensor],
    block_mask: BlockMask | None,
    scale: float,
    enable_gqa: bool,
) -> Tensor:
    """Return FlexAttention by its definition: its kernel is compiled for devices that Triton knows."""
    sizes = (*q_BHTE.shape[:3], k_BGSE.shape[2])
    b, h, t, s = torch.meshgrid(*(torch.arange(size, device=DEVICE) for size in sizes), indexing="ij")
    k_BHSE, v_BHSE = (x.repeat_interleave(sizes[1] // x.shape[1], dim=1) for x in (k_BGSE, v_BGSE))
    score_BHTS = score_mod(q_BHTE @ k_BHSE.mT * scale, b, h, t, s)
    if block_mask is not None:
        score_BHTS = score_BHTS.masked_fill(~block_mask.mask_mod(b, h, t, s), -math.inf)
    return score_BHTS.softmax(-1) @ v_BHSE


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


def waits(*overrides: str) -> dict[str, dict[str, int]]:
    """Return where a training step, an evaluation and a generation waited, and how often."""
    settings = commands.settings(*commands.TINY, *overrides)
    planned, waits_by_stage = plan(settings), {}
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
            waits_by_stage[stage] = dict(mode.waits)
    return waits_by_stage


def main(device: str, group: str, precision: str, *chosen: str) -> None:
    set_up(device)
    for name in chosen or CASES[group]:
        result = waits(*CASES[group][name], f"device.precision={precision}")
        print(json.dumps({"case": name, **result}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
