"""Run the Triton kernels of other packages on a CPU, in Triton's interpreter.

``prepare`` has to be called before Triton is imported. What a machine without a GPU lacks is replaced:

- the CUDA device that a kernel is started on, and its number of processors;
- autotuning, which measures time on a device: the first configuration is used;
- the index of a loop over a range that is known only at run time: the interpreter gives a Python integer,
  while the kernels of fla use it as a tensor;
- ``gather``, which fla imports by name, where the interpreter does not see it;
- arithmetic in bfloat16, sums among it, which the interpreter does with the bits taken for integers: operands
  are converted to float32, which is exact, and the result is rounded, as on a GPU.

Nothing here measures speed.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).resolve().parent.parent.parent / ".kernels"
"""Where ``make test-kernels`` unpacks the packages."""
MAMBA_SSM = ("2.3.0", "2.3.1", "2.3.2.post1")
"""Versions whose kernels are tested."""
CUDA_MODULES = ("selective_scan_cuda", "causal_conv1d_cuda", "causal_conv1d.cpp_functions")
"""Compiled parts, which cannot be built without a CUDA compiler."""


def prepare() -> None:
    """Make Triton interpret kernels, and replace what a CPU does not have."""
    assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1"
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(FOLDER / "packages"))
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # type: ignore[assignment,misc]
    properties = types.SimpleNamespace(multi_processor_count=4)
    torch.cuda.get_device_properties = lambda *_: properties  # type: ignore[assignment]
    _use_the_first_configuration()
    _replace_names_in_kernels()
    _widen_bfloat16()


def _use_the_first_configuration() -> None:
    autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    initialise = autotuner.__init__

    def with_one(self: Any, function: Any, names: Any, configs: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, function, names, configs[:1], *args, **kwargs)

    autotuner.__init__ = with_one


def _replace_names_in_kernels() -> None:
    interpreter = importlib.import_module("triton.runtime.interpreter")
    language = importlib.import_module("triton.language")
    execute = interpreter.GridExecutor.__call__

    def tensor_range(*bounds: Any) -> Iterator[Any]:
        for index in builtins.range(*map(int, bounds)):
            yield interpreter._implicit_cvt(index)

    def gather(*args: Any, **kwargs: Any) -> Any:
        return language.gather(*args, **kwargs)

    def execute_with_names(self: Any, *args: Any, **kwargs: Any) -> None:
        kernel = getattr(self.fn, "fn", self.fn)
        if kernel.__module__.startswith("fla."):
            kernel.__globals__.update(range=tensor_range, gather=gather)
        execute(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = execute_with_names


def _widen_bfloat16() -> None:
    interpreter = importlib.import_module("triton.runtime.interpreter")
    language = importlib.import_module("triton.language")
    builder = interpreter.InterpreterBuilder
    multiply_matrices, operate, change = builder.create_dot, builder.binary_op, builder.unary_op
    total = interpreter.ReduceOps.sum

    def widened(self: Any, operand: Any) -> Any:
        narrow = operand.dtype.scalar == language.bfloat16
        return self.cast_impl(operand, language.float32) if narrow else operand

    def create_dot(self: Any, a: Any, b: Any, *args: Any) -> Any:
        return multiply_matrices(self, widened(self, a), widened(self, b), *args)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if lhs.dtype.scalar != language.bfloat16:
            return operate(self, lhs, rhs, op)
        result = operate(self, widened(self, lhs), widened(self, rhs), op)
        return self.cast_impl(result, language.bfloat16)

    def unary_op(self: Any, operand: Any, op: Any) -> Any:
        if operand.dtype.scalar != language.bfloat16:
            return change(self, operand, op)
        return self.cast_impl(change(self, widened(self, operand), op), language.bfloat16)

    def add_up(self: Any, operand: Any) -> Any:
        if operand.dtype.scalar != language.bfloat16:
            return total(self, operand)
        wide = widened(interpreter.interpreter_builder, operand.handle)
        result = total(self, self.to_tensor(wide.data, language.float32))
        narrow = interpreter.interpreter_builder.cast_impl(result.handle, language.bfloat16)
        return self.to_tensor(narrow.data, language.bfloat16)

    builder.create_dot, builder.binary_op, builder.unary_op = create_dot, binary_op, unary_op
    interpreter.ReduceOps.sum = add_up


def use_mamba_ssm(version: str) -> None:
    """Import ``mamba_ssm`` from the sources of this version from now on.

    Its ``__init__`` imports compiled parts, so an empty package takes its place.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "mamba_ssm"]:
        del sys.modules[name]
    for name in CUDA_MODULES:
        sys.modules[name] = types.ModuleType(name)
    functions = sys.modules["causal_conv1d.cpp_functions"]
    for name in ("fwd", "bwd", "update"):
        setattr(functions, f"causal_conv1d_{name}_function", None)
    for package, folder in (("mamba_ssm", f"mamba_ssm-{version}"), ("causal_conv1d", "causal_conv1d-1.7.0")):
        module = types.ModuleType(package)
        module.__path__ = [str(FOLDER / folder / package)]
        sys.modules[package] = module
    reference = importlib.import_module("causal_conv1d.causal_conv1d_interface").causal_conv1d_ref
    sys.modules["causal_conv1d"].causal_conv1d_fn = reference  # type: ignore[attr-defined]
    scans = importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    scans.selective_scan_fn = scans.selective_scan_ref  # type: ignore[attr-defined]
