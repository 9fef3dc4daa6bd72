"""The device of a process, mixed precision, and its global settings: CPU threads, kernels, the heap."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from archbench.architectures import fast_paths
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.memory import keep_freed_memory


def torch_device(name: str) -> torch.device:
    """Return the device of ``device.name``; ``auto`` is a GPU where there is one, else the CPU."""
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(auto if name == "auto" else name)


def configure_process(*, threads: int | None, kernels: str, deterministic: bool = False) -> None:
    """Set global options of the process: CPU threads, pointwise kernels, the heap, rounding on a GPU.

    Products and convolutions in float32 are exact to float32: PyTorch's default is TF32 for convolutions,
    with 10 bits of 23.

    Args:
        threads: CPU threads of PyTorch; None for the default.
        kernels: ``device.kernels``.
        deterministic: ``device.deterministic``.

    Raises:
        ConfigError: the requested kernels cannot be built here.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if deterministic != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at the first product
    keep_freed_memory()
    if kernels != "torch" and (measure := fast_paths.find_kernel("measure")) is not None:
        measure()
    try:
        fast_paths.choose(kernels)
    except ValueError as error:
        raise ConfigError(f"device.{error}") from error


@contextmanager
def inference(model: nn.Module, device: torch.device, precision: str) -> Iterator[None]:
    """Within it the model is in evaluation mode, without gradients, in the precision of training."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast(device, precision):
            yield
    finally:
        model.train(was_training)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context of ``device.precision``; disabled for ``fp32``."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
