"""Bytes that the backward pass of a micro-batch finds kept, counted without memory and without weights.

The model runs forward on tensors that have shapes alone, and PyTorch tells what it keeps for the backward
pass. Compiled kernels are not entered: PyTorch's own operations stand in for them. Those of a state-space
model keep more.

Shapes: B sequences, T tokens, V symbols.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.fast_paths import switched_off
from archbench.architectures.layers.block import Block
from archbench.experiments.run.estimate.even_routing import route_evenly
from archbench.experiments.run.plan import Plan
from archbench.experiments.run.settings import Settings
from archbench.experiments.training.loss import Loss
from archbench.experiments.training.parallel.block_wrapping import wide_parameters

OUTSIDE = -1
"""Number of what is kept outside all blocks: of embedding, last norm, head and loss."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes kept for the backward pass of a micro-batch."""

    blocks: int
    """All that the blocks keep, and what embedding, last norm and loss do in addition to logits."""
    recomputed: int
    """The same where blocks are computed again: their inputs, and all that the largest of them keeps."""
    logits: int
    """Logits and what the loss makes of them, in each precision in which they are kept."""

    def scaled(self, other: Kept, rows: int) -> Kept:
        """Return the bytes of ``rows`` sequences, given those of one (this) and of two (``other``).

        What does not grow with the sequences, such as weights in the precision of products, counts once.
        """
        names = ("blocks", "recomputed", "logits")
        one, two = ([getattr(kept, name) for name in names] for kept in (self, other))
        return Kept(**{n: a + (rows - 1) * (b - a) for n, a, b in zip(names, one, two, strict=True)})


def kept_activations(settings: Settings, run_plan: Plan, rows: int, *, rounded: bool = False) -> Kept | None:
    """Return what ``rows`` sequences keep in training; None where that depends on data.

    It does where experts have a capacity. Others are counted as if each received equally many tokens.

    Args:
        rounded: weights of products are gathered in bfloat16, so that autocast makes no copy of them.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    try:
        one = _measured(settings, run_plan, 1, rounded)
        return one if rows == 1 else one.scaled(_measured(settings, run_plan, 2, rounded), rows)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None


@dataclass
class _Ledger:
    """Notes what is kept while a model runs forward, by the block that runs."""

    vocab_size: int
    weights: set[int]
    running: int = OUTSIDE
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of each storage, by its address."""
    owners: dict[int, int] = field(default_factory=dict)
    inputs: dict[int, int] = field(default_factory=dict)
    logits: set[int] = field(default_factory=set)
    alive: list[Any] = field(default_factory=list)
    """The counted storages, kept alive so that no address is used twice."""

    def keep(self, tensor: Tensor) -> Tensor:
        """Count a tensor that the backward pass needs."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.weights and key not in self.sizes:
            self.sizes[key], self.owners[key] = storage.nbytes(), self.running
            self.alive.append(storage)
            if self.running == OUTSIDE and tensor.ndim and tensor.shape[-1] == self.vocab_size:
                self.logits.add(key)
        return tensor

    def enter(self, block: int, given: tuple[Any, ...]) -> None:
        """Begin a block, whose input is kept where the rest is computed again."""
        self.running = block
        for value in given:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self.inputs.setdefault(storage._cdata, storage.nbytes())
                self.alive.append(storage)

    def leave(self) -> None:
        """End a block."""
        self.running = OUTSIDE

    def kept(self) -> Kept:
        """Return the sums."""
        blocks: dict[int, int] = {}
        for key, owner in self.owners.items():
            blocks[owner] = blocks.get(owner, 0) + self.sizes[key]
        logits = sum(self.sizes[key] for key in self.logits)
        outside = blocks.pop(OUTSIDE, 0) - logits
        inside = max(blocks.values(), default=0)
        begins = sum(size for key, size in self.inputs.items() if self.owners.get(key) != OUTSIDE)
        return Kept(
            blocks=outside + sum(blocks.values()), recomputed=outside + begins + inside, logits=logits
        )


def _measured(settings: Settings, run_plan: Plan, rows: int, rounded: bool) -> Kept:
    """Return what a micro-batch keeps."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = run_plan.sizes.on_meta(settings.backbone_class, run_plan.matched.config)
    route_evenly(model)
    view = run_plan.objective.view(run_plan.task.batch("train", 0, 0, rows), torch.Generator().manual_seed(0))
    loss = Loss(model, run_plan.objective, settings.device.precision)
    with (
        switched_off("tensors of an estimate have no memory"),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        model.to_empty(device="cpu").train()
        if rounded:
            _round_weights(model)
        own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        ledger = _Ledger(vocab_size=run_plan.sizes.vocab_size, weights=own)
        with (
            _followed(model, ledger),
            torch.autograd.graph.saved_tensors_hooks(ledger.keep, lambda kept: kept),
        ):
            loss(view, torch.tensor(1.0), rows)
        return ledger.kept()


def _round_weights(model: Backbone) -> None:
    """Turn the weights that fsdp gathers in bfloat16 into it."""
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    wide = {id(model.get_parameter(name)) for name in wide_parameters(model, blocks)}
    for part in (part for block in blocks for part in block.modules()):
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) not in wide:
                setattr(part, name, torch.nn.Parameter(parameter.to(torch.bfloat16)))


@contextlib.contextmanager
def _followed(model: Backbone, ledger: _Ledger) -> Iterator[None]:
    """Within it the ledger is told which block runs."""
    hooks = []
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    for number, block in enumerate(blocks):
        hooks.append(
            block.register_forward_pre_hook(lambda _, given, number=number: ledger.enter(number, given))
        )
        hooks.append(block.register_forward_hook(lambda *_: ledger.leave()))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
