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
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archbench.architectures import fast_paths
from archbench.architectures.backbone import Backbone, Flops, Output
from archbench.architectures.layers.block import FeedForward, Mixer
from archbench.architectures.layers.mixture_of_depths import RoutedBlock
from archbench.experiments.config.structured import PACKAGE
from archbench.experiments.objectives.objective import View
from archbench.experiments.run.product_flops import (
    Unwritten,
    base_of,
    custom_flops,
    has_packed,
    is_factorisation,
    is_foreign,
    is_opaque,
    is_product,
    product_flops,
    storages,
)

TOLERANCE = 1.01
"""Largest ratio of counted and stated FLOPs."""
SCAN = 4
"""Products of a scan in chunks for one of the recurrence that is stated."""
BACKWARD = 2
"""FLOPs of a backward pass for one of the forward pass, which checkpoints may repeat to save memory."""

aten = torch.ops.aten
BATCHED = (aten.bmm, aten.baddbmm)
SIMPLE = (aten.mm, aten.addmm, aten.convolution)
"""Products whose backward pass takes two."""
DYNAMIC = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
"""Tags of operations after which the work depends on the values of the sequence."""
TRANSFORMS = {aten._fft_r2c: 2.5, aten._fft_c2r: 2.5, aten._fft_c2c: 5.0}
"""Fourier transforms, and their FLOPs divided by n log2 n."""


@dataclass(kw_only=True)
class Work:
    """FLOPs of products."""

    certain: float = 0
    """With an operand that does not depend on the sequence."""
    possible: float = 0
    """Of two activations, and Fourier transforms."""
    elementwise: float = 0
    """The most of other operations, which a model need not state."""
    unclear: bool = False
    """True if the work depends on values, or an operation is not known or not seen."""

    @property
    def text(self) -> str:
        """Number of FLOPs; of products of activations, the least that a scan in chunks stands for."""
        least, most = self.certain + self.possible / SCAN, self.certain + self.possible
        return f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"

    def exceeds(self, stated: Flops) -> bool:
        """Return True if it is more than the stated FLOPs allow."""
        allowed = stated.linear + stated.attention + SCAN * stated.mixer
        return self.certain > TOLERANCE * stated.total or self.certain + self.possible > TOLERANCE * allowed

    def falls_short(self, stated: Flops) -> bool:
        """Return True if it is certain to be less than stated: only where all products are linear."""
        linear = not (self.possible or self.unclear)
        return linear and stated.total > TOLERANCE * (self.certain + self.elementwise)


class ProductCounter(TorchDispatchMode):
    """Counts products, in total and by the modules that are being computed."""

    def __init__(self, model: Backbone, view: View) -> None:
        super().__init__()
        given = [value for value in vars(view).values() if isinstance(value, Tensor)]
        self.dependent = {storage for tensor in given for storage in storages(tensor)}
        """Storages with values that depend on the sequence."""
        self.weights = {storage for weight in model.parameters() for storage in storages(weight)}
        """Storages of parameters, which may be detached or frozen."""
        self.unwritten = Unwritten()
        self.total = Work()
        self.all = 0.0
        """FLOPs of all products over all pairs, those of layers of the project too."""
        self.attention = 0.0
        """FLOPs of the attention of layers of the project, by their own count."""
        self.repeatable = 0.0
        """FLOPs of products whose backward pass may take one more."""
        self.recomputed = 0.0
        """FLOPs of products with gradients, which in a backward pass are the forward pass again."""
        self.open: list[Work] = [self.total]
        """Where to add: the model, and the modules that are being computed."""
        self.paused = 0
        self.scores: dict[torch.Size, list[tuple[float, list[Work]]]] = {}
        """Products by the shape of their output, which a mask may make sparse."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(cls.__torch_dispatch__ is not Tensor.__torch_dispatch__ for cls in types):
            return NotImplemented  # such as a nested tensor, which computes with tensors that come here
        operation = base_of(func)
        if not is_product(operation) and hasattr(func, "decompose"):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if any(isinstance(leaf, Tensor) and leaf.is_nested for leaf in tree_leaves(out)):
            raise ValueError("nested tensors are counted with layout=torch.jagged only")
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        depends = [self._depends(x) for x in operands]
        # PyTorch counts the backward pass of depthwise convolutions as if channels were connected.
        flops = (
            product_flops(operation, args, kwargs, out) if operation is not aten.convolution_backward else 0.0
        )
        self.all += flops
        self.recomputed += flops if torch.is_grad_enabled() else 0.0
        if is_factorisation(operation):
            self.repeatable = math.inf
        elif operation not in SIMPLE:
            self.repeatable += flops
        self.add(unclear=self.unwritten.read(func, args, kwargs, out))
        if any(depends):
            results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.dependent |= {storage for x in results for storage in storages(x)}
            self._count(func, flops, out, operands, depends, has_packed(args))
        return out

    def _depends(self, x: Tensor) -> bool:
        """Return True if values depend on the sequence, or PyTorch does not show where they are stored."""
        refs = storages(x)
        return not refs or any(ref in self.dependent for ref in refs)

    def _count(
        self,
        func: Any,
        flops: float,
        out: Any,
        operands: list[Tensor],
        depends: list[bool],
        is_packed: bool,
    ) -> None:
        operation, result = base_of(func), next((x for x in tree_leaves(out) if isinstance(x, Tensor)), None)
        made = 0 if result is None else result.numel()
        self.add(unclear=bool(DYNAMIC & set(getattr(func, "tags", ()))))
        is_weighted = is_packed or (operation in SIMPLE and operands[0].layout == torch.strided)
        if operation in BATCHED and all(depends):
            self._add_pairs(flops, operands[-2], operands[-1], out)
        elif flops and all(depends) and not is_weighted:
            self.add(possible=flops)
        elif flops:
            self.add(certain=flops * _inside(operation, operands[0], out))
        elif operation is aten.mul and made > max(x.numel() for x in operands):
            self.add(possible=2 * made)
        elif operation in TRANSFORMS and result is not None:
            real = max(operands[0].shape[-1], result.shape[-1])
            rows = made / result.shape[-1]
            self.add(possible=TRANSFORMS[operation] * rows * real * math.log2(max(real, 2)))
        else:
            if is_opaque(func, operands):
                hidden = custom_flops(operands, depends, self.weights)
                self.add(certain=hidden, unclear=hidden > 0 or is_foreign(func))
            self.add(elementwise=2 * max([made, *(x.numel() for x in operands)]))

    def _add_pairs(self, flops: float, left: Tensor, right: Tensor, out: Tensor) -> None:
        """Add a batched product of activations; zeros of its factors are pairs that a mask excludes."""
        if torch.strided != left.layout or torch.strided != right.layout:
            self.add(possible=flops)
            return
        fraction = min(float(x.count_nonzero()) / max(x.numel(), 1) for x in (left, right))
        for shape, factor in ((left.shape, left), (right.shape, right)):
            share = float(factor.count_nonzero()) / max(factor.numel(), 1)
            for scores, works in self.scores.pop(shape, []):
                for work in works:
                    work.possible -= (1 - share) * scores
        self.add(possible=fraction * flops)
        if not self.paused:
            self.scores.setdefault(out.shape, []).append((fraction * flops, list(self.open)))

    def add(
        self, *, certain: float = 0, possible: float = 0, elementwise: float = 0, unclear: bool = False
    ) -> None:
        """Add work to the model and to the modules that are being computed."""
        if self.paused:
            return
        for work in self.open:
            work.certain += certain
            work.possible += possible
            work.elementwise += elementwise
            work.unclear |= unclear


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
            counter.attention += 0.0 if counter.paused else known_attention(module, args)
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
    return cls.__module__.partition(".")[0] == PACKAGE and defined is cls and not changed


def known_flops(module: nn.Module, args: Any) -> float:
    """Return the FLOPs of a call of a layer of the project, or of a recurrent layer of PyTorch."""
    x = args[0]
    if isinstance(module, nn.RNNBase):
        tokens = len(x.data) if isinstance(x, nn.utils.rnn.PackedSequence) else x.numel() // x.shape[-1]
        return 2.0 * tokens * sum(p.numel() for p in module.parameters() if p.ndim == 2)
    return float(stated_flops(module, x).total) if hasattr(module, "flops") else 0.0


def known_attention(module: nn.Module, args: Any) -> float:
    """Return the FLOPs of attention in a call of a layer of the project."""
    return float(stated_flops(module, args[0]).attention) if hasattr(module, "flops") else 0.0


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
    if model.capabilities.blockwise:
        view = replace(view, clean_BT=None)  # sequence_flops is that of one copy
    length, source, name = view.tokens_BT.shape[1], view.source_length, type(model).__name__
    stated, short = planned.sequence_flops(length, source), set[str]()
    if not math.isfinite(stated.total) or stated.total < 0:
        return f"{name}: sequence_flops({length}) is {stated.total}: it must be a number of operations"
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
        if counted and (problem := _pass_problem(model, stated, view, training, short)):
            return problem
    half = planned.sequence_flops(max(1, length // 2), max(1, source // 2) if source else 0)
    if length > 1 and half.total >= stated.total:
        return (
            f"{name}: sequence_flops is {half.total:,} for {length // 2} tokens and {stated.total:,} for "
            f"{length}: it must grow with the length"
        )
    return None


def _pass_problem(model: Backbone, stated: Flops, view: View, training: bool, short: set[str]) -> str | None:
    """Return what a pass computes that is not stated, or None. Adds to ``short`` as ``_stated_problem``."""
    counter, rows, kernels = ProductCounter(model, view), len(view.tokens_BT), fast_paths.chosen()
    whole = Flops(linear=rows * stated.linear, attention=rows * stated.attention, mixer=rows * stated.mixer)
    fast_paths.choose("torch")  # what C++ computes is not counted
    try:
        with watched(model, counter) as parts, sdpa_kernel(SDPBackend.MATH), counter:
            with torch.set_grad_enabled(training):
                output = view.run(model)
            if not isinstance(output, Output):
                raise TypeError(f"compute must return an Output, not {type(output).__name__}")
            work, forward, repeatable = replace(counter.total), counter.all, counter.repeatable
            found = {part.name: (replace(part.work), part.stated, module) for module, part in parts.items()}
            counter.recomputed = 0.0
            if training:
                _run_backward(output)
    finally:
        fast_paths.choose(kernels)
        model.zero_grad()
    if model.capabilities.blockwise:
        # Layers count all pairs, and the model those that its blocks allow.
        work.certain -= max(0.0, counter.attention - whole.attention)
    if problem := _stated_problem(model, view, work, whole, found, short):
        return problem
    once = max(forward, work.certain)
    backward, again = counter.all - forward, min(counter.recomputed, once)
    if backward - again > TOLERANCE * (BACKWARD * once + repeatable):
        return (
            f"{type(model).__name__}: the backward pass of {view.tokens_BT.numel()} tokens "
            f"takes {backward:,.0f} FLOPs, more than {BACKWARD} times the {once:,.0f} of the forward "
            "pass, which training counts; recompute with torch.utils.checkpoint only"
        )
    return None


def _stated_problem(
    model: Backbone,
    view: View,
    work: Work,
    whole: Flops,
    found: dict[str, tuple[Work, Flops, nn.Module]],
    short: set[str],
) -> str | None:
    """Return which layers state less than they compute, or more, or None.

    Args:
        short: layers that computed less than stated in training, where it is filled.
    """
    name, (rows, length) = type(model).__name__, view.tokens_BT.shape
    layers = [
        (
            f"{part} ({type(module).__name__}) takes {of_part.text} and states {of_layer.total:,}",
            of_part,
            of_layer,
        )
        for part, (of_part, of_layer, module) in found.items()
    ]
    many = "" if rows == 1 else f"{rows} sequences of "
    times = "" if rows == 1 else f"{rows} times "
    start = (
        f"{name}: {many}{length} tokens take {work.text} FLOPs, and {times}sequence_flops({length}) is "
        f"{whole.total:,}: correct flops of "
    )
    if work.exceeds(whole):
        return start + ("; ".join([text for text, w, s in layers if w.exceeds(s)][:3]) or "the model")
    low = {text.partition(" ")[0]: text for text, w, s in layers if w.falls_short(s)}
    if work.falls_short(whole) and not low:
        low[""] = "the model"
    if model.training:
        # A layer may be left out in one mode only, such as by stochastic depth.
        short.update(low)
    elif high := [low[key] for key in sorted(low.keys() & short, reverse=True)]:
        return start + "; ".join(high[:3])
    return None


def _run_backward(output: Output) -> None:
    """Compute the gradients of all outputs."""
    outputs = [output.logits_BTV, output.hidden_BTD, *output.auxiliary.values()]
    loss = sum((x.float().square().mean() for x in outputs if x.requires_grad), torch.zeros(()))
    if loss.requires_grad:
        loss.backward()
