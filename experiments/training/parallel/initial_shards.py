"""Initial weights of a model that is divided from the start: each process keeps its part of every tensor.

The model is built twice. The first time it has no memory; it is divided, and its parts get memory. The second
time its parameters are those parts: whatever the constructors draw, copy or compute into a parameter is made
whole in a scratch tensor, of which the process keeps its part. So every process draws the same numbers as a
process that trains alone, and none ever holds more than its parts and one whole tensor.
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

from architectures.backbone import Backbone
from experiments.runtime.errors import ConfigError

OVERWRITING = frozenset({"normal_", "uniform_", "kaiming_uniform_", "copy_"})
"""Functions in place whose result does not depend on what the tensor held."""
ELEMENTWISE = frozenset({"mul_", "log_", "zero_", "fill_"})
"""Functions in place that a part can take alone, where their other arguments are numbers."""
SHAPE_ONLY = frozenset({"empty_like", "expand_as"})
"""Functions that ask a divided tensor for its shape alone."""
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
        """Give the parts of the model, divided by now, memory and their initial values.

        All processes must call it: what reads a divided tensor gathers it for a moment.
        """
        _give_memory(self.model)
        parameters = dict(self.model.named_parameters())
        slots = iter(self._slots)
        known: dict[int, nn.Parameter] = {}

        def replace(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
            if id(parameter) in known:
                return None  # registered once more, as a tied table is
            slot = next(slots)
            used = parameter if slot is None else parameters[slot]
            known[id(used)] = used
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
    """Give a model on the meta device memory; modules that share a parameter, as tied tables do, go on to."""
    shared: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    model.to_empty(device="cpu")
    for first, *others in shared.values():
        for name in others:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, model.get_parameter(first))


@contextmanager
def _at_registration(hook: Any) -> Iterator[None]:
    """Within it the hook receives every parameter that a module registers, and may return another."""
    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class _PartsOnly(TorchFunctionMode):
    """Lets plain code initialise divided tensors: it sees whole tensors, and their parts are kept."""

    def __init__(self) -> None:
        super().__init__()
        self._read: deque[tuple[Tensor, int, str]] = deque(maxlen=8)
        """Whole tensors that were read last, their versions then, and by what."""

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
        others = (args[1:], {key: value for key, value in kwargs.items() if key != "tensor"})
        if name in ELEMENTWISE and not any(isinstance(leaf, Tensor) for leaf in tree_leaves(others)):
            func(_part(target), *others[0], **others[1])
            return target
        whole = torch.empty(target.shape, dtype=target.dtype) if name in OVERWRITING else _gathered(target)
        func(whole, *self._whole(others[0], name), **self._whole(others[1], name))
        divided = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
        _part(target).copy_(_part(divided))
        return target

    def _whole(self, tree: Any, name: str) -> Any:
        """Return arguments with whole tensors in the place of divided ones."""

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
    found: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return found


def _gathered(tensor: DTensor) -> Tensor:
    """Return the whole of a divided tensor, in CPU memory."""
    return tensor.full_tensor().detach().cpu()
