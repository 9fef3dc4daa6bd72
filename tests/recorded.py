"""Records on a CPU the kernels and shapes that a GPU would be given, and what the host would wait for.

``Tape`` stands in for a CUDA graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from archbench.architectures import fast_paths

READING = {Tensor.tolist, Tensor.numpy, Tensor.cpu}
"""Ways to read a tensor that on a CPU are no operation, and so are seen as they are called."""
WRITING = {torch.tensor, torch.as_tensor, torch.from_numpy, Tensor.new_tensor}
"""Ways to bring numbers of the host to a device, which wait for it where the memory is not pinned."""
ANSWERING = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
}
"""Operations whose result is a number for the host, or has a shape that their values decide."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""These make ``nonzero`` of an index of True and False."""


def without_cpp_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing runs in C++ kernels, which there are on a CPU only: PyTorch's operations remain."""
    monkeypatch.setattr(fast_paths, "_off", "a test wants to see every operation")


class Recorded(TorchDispatchMode):
    """Within it every operation is recorded, and whatever would make the host wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[Any, ...]] = []
        """Each with the shapes and types of the tensors it is given."""
        self.waits: list[str] = []
        self._calls = _Calls(self.waits)

    def __enter__(self) -> Recorded:
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._calls.__exit__(*raised)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        tensors = [each for each in flat if isinstance(each, Tensor)]
        self.kernels.append((str(func), *((tuple(each.shape), each.dtype) for each in tensors)))
        masked = name in INDEXING and any(each.dtype == torch.bool for each in _indices(args[1]))
        # repeat_interleave by a tensor of repeats adds them up, unless it is told the sum.
        repeated = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        if name in ANSWERING or masked or repeated:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in READING | WRITING:
            self.waits.append(func.__name__)
        return func(*args, **(kwargs or {}))


def _indices(index: Any) -> list[Tensor]:
    return [each for each in index if isinstance(each, Tensor)]


class Tape(TorchDispatchMode):
    """Operations that are recorded and repeated on the same memory, as by a CUDA graph.

    Recording changes no tensor that was there before: what was written to is restored. Repeating reads no
    Python: a tensor that a layer puts in the place of another is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._before.setdefault(id(value), (value, value.clone()))
        result = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, result))
        return result

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for tensor, before in reversed(self._before.values()):
            tensor.copy_(before)

    @torch.no_grad()
    def replay(self) -> None:
        """Run all operations again, on what the tensors now hold."""
        for func, args, kwargs, result in self._calls:
            again = torch.utils._pytree.tree_leaves(func(*args, **kwargs))
            for old, new in zip(torch.utils._pytree.tree_leaves(result), again, strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Stream:
    """A stream that waits for nothing."""

    def wait_stream(self, other: _Stream) -> None:
        pass


def capture_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on what PyTorch captures as a CUDA graph is a tape: there is no GPU to do it."""

    @contextlib.contextmanager
    def graph(tape: Tape) -> Iterator[None]:
        with tape:
            yield

    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", graph)
