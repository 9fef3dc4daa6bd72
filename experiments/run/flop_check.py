"""Check that a model of the user's code states the FLOPs that it takes.

One sequence is computed forwards and backwards. A matrix product, or a convolution, with an operand that does
not depend on the sequence is certain work: it must be stated to 1%. A product of two activations is attention
or a scan: of the former only pairs that the mask allows are counted, and a scan in chunks may take up to four
times the products of the recurrence that is stated. Elementwise work is left out, except for outer products.
Layers of the project count what they state, which tests verify, and recurrent layers of PyTorch, which it
computes in one operation, the products with their weights.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from architectures.backbone import Backbone, Flops, Output
from architectures.kernels import pointwise
from architectures.layers.block import FeedForward, Mixer
from architectures.layers.mixture_of_depths import RoutedBlock
from experiments.config.structured import PROJECT
from experiments.objectives.objective import View

TOLERANCE = 1.01
"""Largest ratio of counted and stated FLOPs."""
SCAN = 4
"""Products of a scan in chunks for one of the recurrence that is stated."""
BACKWARD = 3
"""FLOPs of a backward pass for one of the forward pass, which a model may repeat to save memory."""

aten = torch.ops.aten
OPERATIONS = ("aten", "prim", "prims", "profiler", "c10d", "_c10d_functional")
"""Libraries of operations of PyTorch."""
BATCHED = (aten.bmm, aten.baddbmm)
OUTER = (aten.mul, aten.mul_)
TRANSFORMS = {aten._fft_r2c: 2.5, aten._fft_c2r: 2.5, aten._fft_c2c: 5.0}
"""Fourier transforms, and their FLOPs divided by n log2 n."""


@dataclass(kw_only=True)
class Work:
    """FLOPs of products."""

    certain: float = 0
    """With an operand that does not depend on the sequence."""
    possible: float = 0
    """Of two activations, and Fourier transforms."""

    @property
    def text(self) -> str:
        """Number of FLOPs; of products of activations, the least that a scan in chunks stands for."""
        least, most = self.certain + self.possible / SCAN, self.certain + self.possible
        return f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"

    def exceeds(self, stated: Flops) -> bool:
        """Return True if it is more than the stated FLOPs allow."""
        allowed = stated.linear + stated.attention + SCAN * stated.mixer
        return self.certain > TOLERANCE * stated.total or self.certain + self.possible > TOLERANCE * allowed


class ProductCounter(TorchDispatchMode):
    """Counts products, in total and by the modules that are being computed."""

    def __init__(self, view: View) -> None:
        super().__init__()
        given = [value for value in vars(view).values() if isinstance(value, Tensor)]
        self.dependent = {StorageWeakRef(tensor.untyped_storage()) for tensor in given}
        """Storages with values that depend on the sequence."""
        self.total = Work()
        self.all = 0.0
        """FLOPs of all products over all pairs, those of layers of the project too."""
        self.open: list[Work] = [self.total]
        """Where to add: the model, and the modules that are being computed."""
        self.paused = 0
        self.scores: dict[torch.Size, list[tuple[float, list[Work]]]] = {}
        """Products by the shape of their output, which a mask may make sparse."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operation = getattr(func, "_overloadpacket", func)
        if operation not in flop_registry and hasattr(func, "decompose"):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        depends = [StorageWeakRef(x.untyped_storage()) in self.dependent for x in operands]
        if operation in flop_registry and operation is not aten.convolution_backward:
            # That of depthwise convolutions is counted as if channels were connected.
            self.all += flop_registry[operation](*args, **kwargs, out_val=out)
        if any(depends):
            results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.dependent |= {StorageWeakRef(x.untyped_storage()) for x in results}
            self._count(operation, args, kwargs, out, operands, all(depends))
        return out

    def _count(
        self, operation: Any, args: Any, kwargs: Any, out: Any, operands: list[Tensor], activations: bool
    ) -> None:
        if operation in flop_registry:
            flops = flop_registry[operation](*args, **kwargs, out_val=out)
            if operation in BATCHED and activations:
                self._add_pairs(flops, operands[-2], operands[-1], out)
            else:
                self.add(certain=flops * _inside(operation, operands[0], out))
        elif str(operation).partition(".")[0] not in OPERATIONS:
            self.add(certain=custom_flops(operands, self.dependent))
        elif operation in OUTER and out.numel() > max(x.numel() for x in operands):
            self.add(possible=2 * out.numel())
        elif operation in TRANSFORMS:
            real = max(operands[0].shape[-1], out.shape[-1])
            rows = out.numel() / out.shape[-1]
            self.add(possible=TRANSFORMS[operation] * rows * real * math.log2(max(real, 2)))

    def _add_pairs(self, flops: float, left: Tensor, right: Tensor, out: Tensor) -> None:
        """Add a batched product of activations; zeros of its factors are pairs that a mask excludes."""
        fraction = min(float(x.count_nonzero()) / max(x.numel(), 1) for x in (left, right))
        for shape, factor in ((left.shape, left), (right.shape, right)):
            share = float(factor.count_nonzero()) / max(factor.numel(), 1)
            for scores, works in self.scores.pop(shape, []):
                for work in works:
                    work.possible -= (1 - share) * scores
        self.add(possible=fraction * flops)
        if not self.paused:
            self.scores.setdefault(out.shape, []).append((fraction * flops, list(self.open)))

    def add(self, *, certain: float = 0, possible: float = 0) -> None:
        """Add work to the model and to the modules that are being computed."""
        if self.paused:
            return
        for work in self.open:
            work.certain += certain
            work.possible += possible


def custom_flops(operands: list[Tensor], dependent: set[StorageWeakRef]) -> float:
    """Return the products of each token with the matrices that an operation of the user's library reads."""
    read = [x for x in operands if StorageWeakRef(x.untyped_storage()) in dependent]
    weights = [x for x in operands if x.ndim >= 2 and x.requires_grad and all(x is not y for y in read)]
    tokens = max(x.numel() // max(x.shape[-1], 1) for x in read if x.ndim)
    return 2.0 * tokens * sum(weight.numel() for weight in weights)


def _inside(operation: Any, x: Tensor, out: Any) -> float:
    """Return the fraction of the outputs of a convolution that are not the effect of padding."""
    if operation is not aten.convolution:
        return 1.0
    return math.prod(min(1.0, given / made) for given, made in zip(x.shape[2:], out.shape[2:], strict=True))


@dataclass(kw_only=True)
class Part:
    """A layer of the user's code with FLOPs of its own."""

    name: str
    work: Work
    stated: Flops


@contextmanager
def watched(model: Backbone, counter: ProductCounter) -> Iterator[dict[nn.Module, Part]]:
    """Count by layer within the block; layers of the project and of PyTorch count what is known of them."""
    parts: dict[nn.Module, Part] = {}
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            is_layer = isinstance(module, Mixer | FeedForward | nn.RNNBase)
            if not is_layer and module is not readout_of(model):
                continue
            known = isinstance(module, nn.RNNBase) or is_verified(module)
            if not known:
                parts[module] = Part(name=name, work=Work(), stated=Flops())
            before, after = _hooks(counter, parts.get(module))
            hooks.callback(module.register_forward_pre_hook(before).remove)
            hooks.callback(module.register_forward_hook(after, always_call=True).remove)
            if not known:
                hooks.callback(module.register_forward_hook(check_output).remove)
        yield parts


def _hooks(counter: ProductCounter, part: Part | None) -> tuple[Any, Any]:
    def before(module: nn.Module, args: Any) -> None:
        if part is None:
            counter.add(certain=known_flops(module, args))
            counter.paused += 1
        else:
            part.stated += stated_flops(module, args[0])
            counter.open.append(part.work)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if part is None:
            counter.paused -= 1
        else:
            counter.open.pop()

    return before, after


def check_output(module: nn.Module, args: Any, output: Any) -> None:
    """Raise TypeError or ValueError for an output of the wrong type or shape."""
    name, shape = type(module).__name__, tuple(args[0].shape)
    if isinstance(module, FeedForward):
        if not (isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], dict)):
            raise TypeError(f"{name}.forward must return a pair of a tensor and a dict of losses")
        output = output[0]
    if not isinstance(output, Tensor):
        raise TypeError(f"{name}.forward must return a tensor, not {type(output).__name__}")
    if tuple(output.shape) != shape:
        raise ValueError(
            f"{name}.forward must return the shape of its input, {shape}, not {tuple(output.shape)}"
        )


def readout_of(model: Backbone) -> nn.Module | None:
    """Return the readout that an objective has attached."""
    return getattr(model, "readout", None)


def is_verified(module: nn.Module) -> bool:
    """Return True for an instance of a class of the project without attributes of its own in their place."""
    cls = type(module)
    defined = getattr(sys.modules.get(cls.__module__), cls.__name__, None)
    changed = {"flops", "forward"} & vars(module).keys()
    return cls.__module__.partition(".")[0] in PROJECT and defined is cls and not changed


def known_flops(module: nn.Module, args: Any) -> float:
    """Return the FLOPs of a call of a layer of the project, or of a recurrent layer of PyTorch."""
    x = args[0]
    if isinstance(module, nn.RNNBase):
        tokens = len(x.data) if isinstance(x, nn.utils.rnn.PackedSequence) else x.numel() // x.shape[-1]
        return 2.0 * tokens * sum(p.numel() for p in module.parameters() if p.ndim == 2)
    return float(stated_flops(module, x).total) if hasattr(module, "flops") else 0.0


def stated_flops(module: nn.Module, x_BTD: Tensor) -> Flops:
    """Return what a layer states for a batch. A feed-forward may be a mixture, whose readout has a number."""
    stated = module.flops(x_BTD.shape[1])  # type: ignore[operator]
    one = stated if isinstance(stated, Flops) else Flops(linear=stated)
    rows = len(x_BTD)
    return Flops(linear=rows * one.linear, attention=rows * one.attention, mixer=rows * one.mixer)


def flop_problem(model: Backbone, planned: Backbone, view: View) -> str | None:
    """Return what is wrong with the FLOPs that a model states, or None.

    Args:
        model: with weights, which are not changed; its buffers may change.
        planned: the same without memory, whose FLOPs the plan of the run has.
        view: a sequence as the objective trains on it.
    """
    length, source, name = view.tokens_BT.shape[1], view.source_length, type(model).__name__
    stated = planned.sequence_flops(length, source)
    for training in (True, False):
        model.train(training)
        if (other := model.sequence_flops(length, source)) != stated:
            mode = "training" if training else "evaluation"
            return (
                f"{name}: sequence_flops({length}) is {other.total:,} in {mode}, and {stated.total:,} in the "
                "plan: state the same FLOPs at all times"
            )
        # How many tokens a mixture of depths evaluates depends on its weights.
        counted = training or not any(isinstance(module, RoutedBlock) for module in model.modules())
        if counted and (problem := _pass_problem(model, stated, view, training)):
            return problem
    half = planned.sequence_flops(max(1, length // 2), max(1, source // 2) if source else 0)
    if length > 1 and half.total >= stated.total:
        return (
            f"{name}: sequence_flops is {half.total:,} for {length // 2} tokens and {stated.total:,} for "
            f"{length}: it must grow with the length"
        )
    return None


def _pass_problem(model: Backbone, stated: Flops, view: View, training: bool) -> str | None:
    """Return what a pass computes that is not stated, or None."""
    counter, rows, kernels = ProductCounter(view), len(view.tokens_BT), pointwise.chosen()
    whole = Flops(linear=rows * stated.linear, attention=rows * stated.attention, mixer=rows * stated.mixer)
    pointwise.choose("torch")  # what C++ computes is not counted
    try:
        with watched(model, counter) as parts, sdpa_kernel(SDPBackend.MATH), counter:
            with torch.set_grad_enabled(training):
                output = view.run(model)
            if not isinstance(output, Output):
                raise TypeError(f"compute must return an Output, not {type(output).__name__}")
            work, forward = replace(counter.total), counter.all
            found = {part.name: (replace(part.work), part.stated, module) for module, part in parts.items()}
            if training:
                _run_backward(output)
    finally:
        pointwise.choose(kernels)
        model.zero_grad()
    name, length = type(model).__name__, view.tokens_BT.shape[1]
    if work.exceeds(whole):
        where = [
            f"{part} ({type(module).__name__}) takes {of_part.text} and states {of_layer.total:,}"
            for part, (of_part, of_layer, module) in found.items()
            if of_part.exceeds(of_layer)
        ]
        return (
            f"{name}: {length} tokens take {work.text} FLOPs, and sequence_flops({length}) states "
            f"{whole.total:,}: correct flops of {'; '.join(where[:3]) or 'the model'}"
        )
    backward, limit = counter.all - forward, TOLERANCE * BACKWARD * max(forward, work.certain)
    if backward > limit:
        return (
            f"{name}: the backward pass of {length} tokens takes {backward:,.0f} FLOPs, more than {BACKWARD} "
            f"times the {forward:,.0f} of the forward pass: training counts two"
        )
    return None


def _run_backward(output: Output) -> None:
    """Compute the gradients of all outputs."""
    outputs = [output.logits_BTV, output.hidden_BTD, *output.auxiliary.values()]
    loss = sum((x.float().square().mean() for x in outputs if x.requires_grad), torch.zeros(()))
    if loss.requires_grad:
        loss.backward()
