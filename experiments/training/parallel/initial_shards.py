"""Initial weights of a model that is divided from the start: each process stores its part of every tensor.

The model is built twice. First on the meta device; it is divided, and memory is allocated for its parts. In
the second build its parameters are those parts: whatever the constructors draw, copy or compute into a
parameter is computed in a full scratch tensor, and the process stores its part. So every process draws the
same values as a single process, and stores at most its parts and one full tensor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from archbench.architectures.backbone import Backbone
from archbench.experiments.runtime.errors import ConfigError

OVERWRITING = frozenset({"normal_", "uniform_", "kaiming_uniform_", "copy_"})
"""In-place functions with a result that does not depend on the previous values."""
ELEMENTWISE = frozenset({"mul_", "log_", "zero_", "fill_"})
"""In-place functions that may be applied to a part only, if their other arguments are scalars."""
SHAPE_ONLY = frozenset({"empty_like", "expand_as"})
"""Functions that read only the shape of a divided tensor."""
ATTRIBUTES = frozenset({"__get__", "__set__", "size", "dim", "numel", "element_size", "is_floating_point"})
NATIVE = ATTRIBUTES | {"detach", "requires_grad_"}
"""Attributes, and functions that neither read nor write values."""

Hook = Callable[[nn.Module, str, nn.Parameter], nn.Parameter | None]


class DividedStart:
    """A model without memory, and how its parts get their initial values once it is divided."""

    def __init__(
        self,
        build_empty: Callable[[], Backbone],
        build: Callable[[], Backbone],
        load: Callable[[Backbone], None] = lambda model: None,
    ) -> None:
        """Build the model without memory.

        Args:
            build_empty: returns the model on PyTorch's meta device.
            build: returns the same model with its initial weights, in CPU memory.
            load: loads other weights into it, which may need another model.
        """
        self._build, self._load = build, load
        self._slots: list[str | None] = []
        """For each parameter in the order of registration its name in the model; None where it is replaced by
        another before the model is complete, as by a tied table."""
        made: dict[int, nn.Parameter] = {}

        def note(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
            made.setdefault(id(parameter), parameter)

        with _at_registration(note):
            self.model = build_empty()
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self._slots = [names.get(key) for key in made]

    @torch.no_grad()
    def fill(self, device: torch.device) -> None:
        """Allocate the parts of the divided model and compute their initial values.

        All processes must call it, because reading a divided tensor gathers it.
        """
        _give_memory(self.model)
        parameters = dict(self.model.named_parameters())
        slots = iter(self._slots)
        registered: dict[int, nn.Parameter] = {}

        def replace(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
            if id(parameter) in registered:
                return None  # registered once more, as a tied table is
            slot = next(slots)
            used = parameter if slot is None else parameters[slot]
            registered[id(used)] = used
            if slot is not None:
                assert used.shape == parameter.shape, f"{slot}: the two builds differ"
                used.copy_(parameter)
            return used

        with _PartsOnly():
            with _at_registration(replace):
                built = self._build()
            assert next(slots, "end") == "end", "the two builds differ"
            self._load(built)
        for name, buffer in built.named_buffers():
            self.model.get_buffer(name).copy_(buffer)
        self.model.to(device)


def _give_memory(model: nn.Module) -> None:
    """Allocate a model on the meta device; shared parameters, such as tied embeddings, stay shared."""
    shared: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    model.to_empty(device="cpu")
    for first_name, *other_names in shared.values():
        for name in other_names:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, model.get_parameter(first_name))


@contextmanager
def _at_registration(hook: Any) -> Iterator[None]:
    """Within it the hook receives every parameter that a module registers, and may return another."""
    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class _PartsOnly(TorchFunctionMode):
    """Lets plain code initialise divided tensors: it sees full tensors, and their parts are stored."""

    def __init__(self) -> None:
        super().__init__()
        self._read: deque[tuple[Tensor, int, str]] = deque(maxlen=8)
        """Full tensors that were read last, their versions then, and the reader."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if name in NATIVE or not any(isinstance(leaf, DTensor) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        self._check_reads()
        target = args[0] if args else kwargs.get("tensor")
        in_place = name.endswith("_") and not name.endswith("__")
        if not (in_place and isinstance(target, DTensor)):
            return func(*self._whole(args, name), **self._whole(kwargs, name))
        other_args = (args[1:], {key: value for key, value in kwargs.items() if key != "tensor"})
        if name in ELEMENTWISE and not any(isinstance(leaf, Tensor) for leaf in tree_leaves(other_args)):
            func(_part(target), *other_args[0], **other_args[1])
            return target
        full = torch.empty(target.shape, dtype=target.dtype) if name in OVERWRITING else _gathered(target)
        func(full, *self._whole(other_args[0], name), **self._whole(other_args[1], name))
        divided = distribute_tensor(full, target.device_mesh, target.placements, src_data_rank=None)
        _part(target).copy_(_part(divided))
        return target

    def _whole(self, tree: Any, name: str) -> Any:
        """Return arguments with full tensors instead of divided ones."""

        def whole(tensor: DTensor) -> Tensor:
            if name in SHAPE_ONLY:
                return torch.empty(tensor.shape, dtype=tensor.dtype)
            gathered = _gathered(tensor)
            self._read.append((gathered, gathered._version, name))
            return gathered

        return tree_map_only(DTensor, whole, tree)

    def _check_reads(self) -> None:
        """Raise ConfigError where code has written into a tensor that it was to read, through a view."""
        for tensor, version, name in self._read:
            if tensor._version != version:
                raise ConfigError(
                    f"backbone: its constructor writes into a parameter through what {name} returns, which "
                    "is lost where the parameter is divided: use functions in place on the parameter itself"
                )


def _part(tensor: Tensor) -> Tensor:
    """Return this process's part of a divided tensor; both share memory."""
    part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return part


def _gathered(tensor: DTensor) -> Tensor:
    """Return the full tensor of a divided one, in CPU memory."""
    return tensor.full_tensor().detach().cpu()
