"""Fast paths: other implementations of operations than PyTorch's, by operation and path.

A layer defines each operation in PyTorch, and asks this table for a faster implementation. The package
``architectures.kernels`` fills the table (``kernels.entries``) when the first one is asked for. Without that
package, everything is computed by PyTorch.

A path has the name that settings have for it: ``cpp`` is C++ for CPUs, ``mamba_ssm`` and ``fla`` are packages
for GPUs. The first is also chosen without a setting of the layer: the C++ kernels of pointwise operations,
attention and decoding run for plain tensors on a CPU, in float32 or bfloat16, where a C++ compiler is found
and they were measured to be faster; all else (other devices and precisions, torch.compile, torch.export,
torch.func, sharded tensors) is PyTorch's. In float32 both give the same values up to rounding; in bfloat16
the kernels round once, at the end.

There is one switch for the process, ``choose`` (``device.kernels`` of a run), as there is one for the
number of threads: it selects an implementation and not a result, so that it is not part of a model's
configuration. ``Backbone.kernels`` reports the selected kernels. Without a C++ compiler ``auto`` is PyTorch,
and ``cpp`` an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from archbench.architectures.optional_part import optional_module

PACKAGE = f"{__package__}.kernels"
CHOICES = ("auto", "torch", "cpp")
PRECISIONS = (torch.float32, torch.bfloat16)

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A call of a scan: what decides which kernels can compute it."""

    operand: Tensor
    """Has the device and dtype of all operands."""
    kernel: str = "scan"
    """Kernel in C++, by its name in the table of sizes."""
    convolution: tuple[int, int] = (0, 0)
    """Channels and taps of the convolution before it; no taps without one."""
    state: int = 0
    """Size of the state of a channel, where the state is that of channels."""
    heads: tuple[int, int] | None = None
    """Widths of the keys and the values of a head, where the state is a matrix."""
    packed: bool = False
    """Rows hold multiple documents."""
    unsupported: str = ""
    """Features of the call that only the kernels in C++ support; empty for none."""


class Source(Protocol):
    """The kernels of one path; a module of the package can be one."""

    def problem(self) -> str:
        """Return why they cannot be called on this machine; empty where they can."""

    def check(self) -> None:
        """Raise ValueError, with the remedy, where they cannot be called on this machine."""

    def unable(self, scan: Scan) -> str:
        """Return the reason why they cannot compute a scan; empty if they can."""

    def preferred(self, scan: Scan) -> bool:
        """Return True where ``scan=auto`` takes them for a scan that they can compute."""


_kernels: dict[tuple[str, str], Callable[..., Any]] = {}
_sources: dict[str, Source] = {}
_filled = False
_chosen = "auto"
_off = ""


def implements(operation: str, path: str = "cpp") -> Callable[[Kernel], Kernel]:
    """Enter the decorated function into the table."""

    def enter(kernel: Kernel) -> Kernel:
        _kernels[operation, path] = kernel
        return kernel

    return enter


def add_source(path: str, source: Source) -> None:
    """Enter the kernels of a path into the table."""
    _sources[path] = source


def _fill() -> None:
    """Import the package of kernels, where it is installed, once."""
    global _filled
    if not _filled:
        optional_module("kernels.entries")
        _filled = True


def kernel(operation: str, path: str = "cpp") -> Callable[..., Any]:
    """Return the implementation of an operation by a path that was selected before."""
    found = find_kernel(operation, path)
    if found is None:
        raise LookupError(f"there is no kernel {path!r} of {operation!r}: {problem(path)}")
    return found


def find_kernel(operation: str, path: str = "cpp") -> Callable[..., Any] | None:
    """Return the implementation of an operation; None where there is none."""
    _fill()
    return _kernels.get((operation, path))


def source(path: str) -> Source | None:
    """Return the kernels of a path; None where they are not installed."""
    _fill()
    return _sources.get(path)


def problem(path: str = "cpp") -> str:
    """Return why the kernels of a path cannot run here, empty where they can; build them if needed."""
    if path == "cpp" and _off:
        return _off
    kernels = source(path)
    return f"{PACKAGE} is not installed" if kernels is None else kernels.problem()


@contextlib.contextmanager
def switched_off(reason: str) -> Iterator[None]:
    """Set the ``problem`` of the C++ kernels to ``reason`` in the block.

    Tensors without memory need it: the kernels would write to invalid addresses.
    """
    global _off
    previous, _off = _off, reason
    try:
        yield
    finally:
        _off = previous


def choose(choice: str) -> None:
    """Set the implementation for the process: ``auto``, ``torch`` (PyTorch's) or ``cpp``.

    Raises:
        ValueError: there is no such choice, or ``cpp`` cannot be built here.
    """
    global _chosen
    if choice not in CHOICES:
        raise ValueError(f"kernels={choice!r} must be one of {', '.join(CHOICES)}")
    if choice == "cpp" and (reason := problem()):
        remedy = "install a C++ compiler such as g++, or " if source("cpp") is not None else ""
        raise ValueError(f"kernels=cpp cannot be built here ({reason}): {remedy}set kernels=auto")
    _chosen = choice


def chosen() -> str:
    """Return what ``choose`` has set."""
    return _chosen


def path(*operands: Tensor) -> str:
    """Return the path that runs for such operands: ``cpp`` or ``torch``."""
    if _chosen == "torch" or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "torch"
    if torch._C._are_functorch_transforms_active() or not all(map(_plain, operands)):
        return "torch"
    return "torch" if problem() else "cpp"


def uses_cpp(name: str, *operands: Tensor) -> bool:
    """Return True where a kernel computes such operands: it can, and is faster (``kernels.cpu.where``)."""
    if path(*operands) != "cpp":
        return False
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    return bool(kernel("faster")(name, operands[0], trained=trained))


def _plain(x: Tensor) -> bool:
    kind = type(x) in (Tensor, nn.Parameter)
    return kind and x.device.type == "cpu" and x.dtype in PRECISIONS and not x.is_neg()


def check_path(path: str, sources: tuple[str, ...] = ()) -> None:
    """Raise ValueError for a path of a scan that does not exist; ``sources`` are those with kernels."""
    valid = ("auto", *sources, "torch", "reference")
    if path not in valid:
        raise ValueError(f"scan={path!r} must be one of {', '.join(valid)}")


def check_installed(path: str) -> None:
    """Raise ValueError for a path of a scan with kernels that this machine does not have."""
    if path not in ("auto", "torch", "reference"):
        if (kernels := source(path)) is None:
            raise ValueError(f"scan={path} needs {PACKAGE}, which is not installed: set scan=auto")
        kernels.check()


def scan_path(path: str, scan: Scan, sources: tuple[str, ...]) -> str:
    """Return the path that runs a scan.

    Args:
        path: the configured one; ``auto`` is the first of ``sources`` that can run the scan and is
            preferred, else ``torch``.
        scan: the call.
        sources: paths with kernels of this scan.

    Raises:
        ValueError: the configured kernels cannot run.
    """
    check_installed(path)
    for name in sources:
        kernels = source(name) if path in ("auto", name) else None
        if kernels is None:
            continue
        unable = kernels.unable(scan)
        if path == name and unable:
            raise ValueError(f"scan={path} cannot do {unable}: set scan=auto or scan=torch")
        if path == name or (not unable and kernels.preferred(scan)):
            return name
    return "torch" if path == "auto" else path
