"""Checks that what a backbone says of its costs is what running it measures.

A cost of one sequence is measured as the difference between a batch of two and
a batch of one: what is made once for a whole batch cancels.

Shapes: B batch, H heads, T queries, S keys, E head_dim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from archbench.architectures import fast_paths
from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import RECURRENT, HybridConfig
from tests.architectures.conformance import random_inputs

aten = torch.ops.aten
Hybrid = TypeVar("Hybrid", bound=HybridConfig)


def plain(config: Hybrid) -> Hybrid:
    """Every scan elementwise, so that no matrix product is a mixer's."""
    names = [name for name in RECURRENT if hasattr(getattr(config, name), "scan")]
    scans = {name: dataclasses.replace(getattr(config, name), scan="reference") for name in names}
    return dataclasses.replace(config, **scans)


class AttentionPairs(TorchFunctionMode):
    """Reads from every call of attention how many (query, key) pairs its mask allows."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed_flops = 0
        self.dense_flops = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            q_BHTE, k_BGSE, v_BGSF = args[:3]
            B, H, T, E = q_BHTE.shape
            width = E + v_BGSF.shape[-1]
            used_width = int(q_BHTE.flatten(0, 2).any(0).sum()) + v_BGSF.shape[-1]  # without padding
            mask = kwargs["attn_mask"]
            if mask is None:
                mask = torch.ones(T, k_BGSE.shape[2], dtype=torch.bool)
                mask = mask.tril() if kwargs["is_causal"] else mask
            allowed = mask if mask.dtype == torch.bool else mask > -torch.inf
            allowed = allowed.expand(B, H, T, k_BGSE.shape[2])
            self.allowed_flops += (
                2 * used_width * int(allowed.sum())
            )  # a multiply-add for score and weighted sum
            self.dense_flops += 2 * width * allowed.numel()
        return func(*args, **kwargs)


class Arithmetic(TorchDispatchMode):
    """Counts elementwise multiplications and additions, sums, and real Fourier transforms.

    A complex product counts 6, a real transform of n points 5/2 n log2 n.
    Matrix products, activations and exponentials are left out. Biases should be
    taken away before: some linear layers add them elementwise, others do not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket
        if name in (aten.mul, aten.mul_):
            self.operations += out.numel() * (6 if out.is_complex() else 1)
        elif name in (aten.add, aten.add_, aten.sub, aten.sub_):
            self.operations += out.numel() * (2 if out.is_complex() else 1)
        elif name is aten.sum:
            self.operations += args[0].numel()
        elif name in (aten._fft_r2c, aten._fft_c2r):
            real = args[0] if name is aten._fft_r2c else out
            size = real.shape[-1]
            self.operations += real.numel() // size * (5 * size * (size.bit_length() - 1) // 2)
        else:
            assert name not in (aten.addcmul, aten.addcmul_, aten._fft_c2c), f"{name} is not counted"
        return out


def arithmetic_of_one_sequence(function: Callable[[int], object]) -> int:
    """Operations that ``function(batch_size)`` spends on one more sequence."""
    counts = []
    for batch_size in (1, 2):
        with torch.no_grad(), Arithmetic() as counter:
            function(batch_size)
        counts.append(counter.operations)
    return counts[1] - counts[0]


def check_parameters(model: Backbone, *, tied: bool) -> None:
    """Counts by part are those of the tensors, each storage once."""
    by_storage = {p.data_ptr(): (name.split(".")[0], p.numel()) for name, p in model.named_parameters()}
    measured = {"embedding": 0, "head": 0, "body": 0}
    for part, count in by_storage.values():
        measured[part if part in measured else "body"] += count
    parts = model.parameters_by_part()
    found = {"embedding": parts.embedding, "head": parts.head, "body": parts.body}
    assert found == measured, f"parameters {found}, measured {measured}"
    assert parts.total == sum(measured.values())
    assert (measured["head"] == 0) == tied, f"tied={tied} but the head has {measured['head']} of its own"


def check_inactive(model: Backbone) -> None:
    """The parameters that one token leaves without gradient and another token does not, every token alike.

    Where none should be, a few tokens tell: other tokens would go to other experts.
    """
    found = model.parameters_by_part().inactive
    body = [p for n, p in model.named_parameters() if n.split(".")[0] not in ("embedding", "head")]
    used = []
    for token in range(model.vocab_size if found else 4):
        tokens_BT = torch.tensor([[token]])
        source = tokens_BT if model.capabilities.encoder_decoder else None
        model.zero_grad()
        output = model(tokens_BT, source_BS=source)
        (output.logits_BTV.square().sum() + sum(output.auxiliary.values())).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in body]
        size = torch.cat([gradient.flatten().abs() for gradient in gradients])
        used.append(size > 1e-15 * size.max())  # the softmax of one score leaves rounding behind
    by_any = torch.stack(used).any(0).sum()
    measured = {int(by_any - one.sum()) for one in used}
    assert measured == {found}, f"inactive parameters {found}, measured {sorted(measured)}"


def check_flops(model: Backbone, length: int) -> None:
    """Linear and attention FLOPs of one sequence are those of the operations that run.

    Under the plain kernel PyTorch's counter sees attention as two batched
    products over all pairs, which confirms the cost of a pair; the masks say how
    many pairs there are.
    """
    counts, kernels = [], fast_paths.chosen()
    fast_paths.choose("torch")  # what C++ computes is not counted
    for batch in (1, 2):
        inputs = random_inputs(model, batch, length)
        counter, pairs = FlopCounterMode(display=False), AttentionPairs()
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter, pairs:
            inputs.run(model)
        by_operation = dict(counter.get_flop_counts()["Global"])
        batched = by_operation.pop(aten.bmm, 0)
        counts.append((sum(by_operation.values()), batched, pairs.dense_flops, pairs.allowed_flops))
    fast_paths.choose(kernels)
    linear, batched, dense, allowed = (two - one for one, two in zip(*counts, strict=True))
    source_length = 0 if inputs.source_BS is None else inputs.source_BS.shape[1]
    found = model.sequence_flops(length, source_length)
    assert found.linear == linear, f"linear FLOPs {found.linear}, measured {linear}"
    assert batched == dense, f"{batched} FLOPs counted over all pairs of attention, {dense} expected"
    assert found.attention == allowed, f"attention FLOPs {found.attention}, measured {allowed}"


def check_state_bytes(model: Backbone, length: int) -> None:
    """The decoding state has the predicted size in memory, and grows with the batch alone."""
    for batch in (1, 3):
        inputs = random_inputs(model, batch, length)
        state = model.start(batch, length, source_BS=inputs.source_BS)
        model.step(inputs.tokens_BT, state)
        source_length = 0 if inputs.source_BS is None else inputs.source_BS.shape[1]
        predicted = batch * model.state_bytes(length, source_length)
        assert predicted == state.num_bytes(), f"state of {predicted} bytes, measured {state.num_bytes()}"
