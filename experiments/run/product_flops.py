"""FLOPs of the operations of PyTorch that are products."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
OPERATIONS = ("aten", "prim", "prims", "profiler", "c10d", "_c10d_functional")
"""Libraries of operations of PyTorch."""
NO_PRODUCT = {torch.Tag.core, torch.Tag.pointwise, torch.Tag.reduction, torch.Tag.inplace_view}
"""Tags of operations that are no products, those with rules below left out."""
EMPTY = (aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided)
"""Operations that return memory without values."""
COMPLEX = 4
"""Products of real numbers for one of complex numbers."""


def elements(x: Tensor) -> int:
    """Return the number of stored elements."""
    if x.layout == torch.sparse_coo:
        return x._values().numel()
    return x.numel() if x.layout == torch.strided else x.values().numel()


def _trilinear(*args: Any, **_: Any) -> float:
    tensors, added = args[:3], args[3:6]
    shapes = []
    for x, dims in zip(tensors, added, strict=True):
        for dim in dims:
            x = x.unsqueeze(dim)
        shapes.append(x.shape)
    return 2.0 * math.prod(torch.broadcast_shapes(*shapes))


def _distances(x: Tensor, *_: Any, out: Tensor, **__: Any) -> float:
    return 2.0 * out.numel() * x.shape[-1]


def _matrix_and_vector(*operands: Any, **_: Any) -> float:
    return 2.0 * max(elements(x) for x in operands if isinstance(x, Tensor))


def _added_product(_: Any, left: Tensor, right: Tensor, **__: Any) -> float:
    return 2.0 * elements(left) * right.shape[-1]


def _sampled_product(sampled: Tensor, left: Tensor, *_: Any, **__: Any) -> float:
    return 2.0 * elements(sampled) * left.shape[-1]


def _weighted_bags(
    table: Tensor, indices: Tensor, *rest: Any, per_sample_weights: Any = None, **_: Any
) -> float:
    weights = rest[4] if len(rest) > 4 else per_sample_weights
    return 0.0 if weights is None else 2.0 * indices.numel() * table.shape[-1]


RULES: dict[Any, Callable[..., float]] = {
    aten._trilinear: _trilinear,
    aten._euclidean_dist: _distances,
    aten._cdist_forward: _distances,
    aten._pdist_forward: _distances,
    aten.mv: _matrix_and_vector,
    aten.addmv: _matrix_and_vector,
    aten.addr: _matrix_and_vector,
    aten.dot: _matrix_and_vector,
    aten.vdot: _matrix_and_vector,
    aten.addbmm: _added_product,
    aten._sparse_addmm: _added_product,
    aten._addmm_activation: _added_product,
    aten.sparse_sampled_addmm: _sampled_product,
    aten._embedding_bag: _weighted_bags,
    aten._embedding_bag_forward_only: _weighted_bags,
}
"""Products that PyTorch's own registry lacks."""


def base_of(func: Any) -> Any:
    """Return the operation without its overload; of one in place, the one that returns a new tensor."""
    packet = getattr(func, "_overloadpacket", func)
    namespace, _, name = str(packet).partition(".")
    if namespace == "aten" and name.endswith("_") and not name.endswith("__"):
        return getattr(aten, name[:-1], packet)
    return packet


def is_factorisation(operation: Any) -> bool:
    """Return True for linear algebra whose backward pass takes other products than the forward pass."""
    name = str(operation).removeprefix("aten.").lstrip("_")
    algebra = name.startswith(("linalg_", "cholesky", "triangular_solve", "lu_"))
    return algebra and not any(word in name for word in ("norm", "check", "cross", "lu_unpack"))


def is_product(operation: Any) -> bool:
    """Return True for a product whose FLOPs are known."""
    return operation in flop_registry or operation in RULES or is_factorisation(operation)


def product_flops(operation: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the FLOPs of a product of PyTorch; 0 for other operations."""
    result = next((x for x in tree_leaves(out) if isinstance(x, Tensor)), None)
    if operation in flop_registry:
        flops = float(flop_registry[operation](*args, **kwargs, out_val=out))
        for x in args:
            if isinstance(x, Tensor) and x.layout != torch.strided:
                flops *= elements(x) / max(x.numel(), 1)
    elif operation in RULES:
        flops = RULES[operation](*args, **kwargs, out=out)
    elif is_factorisation(operation):
        flops = _factorisation(operation, [x for x in args if _is_matrix(x)])
    elif _LINEAR.search(str(operation).partition(".")[2]) or has_packed(args):
        flops = _linear(next((x for x in args if isinstance(x, Tensor)), None), result)
    else:
        return 0.0
    return flops * (COMPLEX if result is not None and result.is_complex() else 1)


_LINEAR = re.compile(r"(?:^|_)(?:mm|linear|gemm|matmul)(?:_|$)")
"""Name of a product of the rows of its first operand, as those of integers are."""


def has_packed(args: Any) -> bool:
    """Return True for an operation with packed weights, as of quantized layers, which are no tensors."""
    return any(isinstance(x, torch.ScriptObject) for x in args)


def _linear(x: Tensor | None, result: Tensor | None) -> float:
    """Return the FLOPs of a linear map of the rows of ``x``; 0 if the result has other rows."""
    if x is None or result is None or not x.ndim or x.shape[:-1] != result.shape[:-1]:
        return 0.0
    return 2.0 * elements(x) * result.shape[-1]


def _is_matrix(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim >= 2 and (x.is_floating_point() or x.is_complex())


def _factorisation(operation: Any, matrices: list[Tensor]) -> float:
    """Return the least FLOPs of a factorisation, and of the solution for the right-hand sides."""
    if not matrices:
        return 0.0
    name, (matrix, *right) = str(operation), matrices
    triangular = "triangular" in name
    factor = 0.0 if triangular or "lu_solve" in name or "cholesky_solve" in name else 2 / 3
    if "inv" in name:
        factor = 2.0
    elif "cholesky_ex" in name:
        factor = 1 / 3
    solved = sum(x.numel() for x in right) * matrix.shape[-1] * (1 if triangular else 2)
    return factor * matrix.numel() * min(matrix.shape[-2:]) + solved


def is_opaque(func: Any, operands: list[Tensor]) -> bool:
    """Return True for an operation that PyTorch says nothing about, which may be a product.

    It is one of another library, or one of PyTorch that has no tag and no indices.
    """
    if is_foreign(func):
        return True
    whole = all(x.is_floating_point() or x.is_complex() for x in operands)
    return whole and not NO_PRODUCT & set(getattr(func, "tags", ())) and not is_view(func)


def is_foreign(func: Any) -> bool:
    """Return True for an operation of another library than PyTorch."""
    return str(func).partition(".")[0] not in OPERATIONS


def is_view(func: Any) -> bool:
    """Return True for an operation whose output or input is another's memory."""
    schema = getattr(func, "_schema", None)
    return schema is not None and any(x.alias_info is not None for x in schema.arguments)


def storages(x: Tensor) -> list[StorageWeakRef]:
    """Return the memory of a tensor; empty where PyTorch does not show it."""
    parts = [x]
    if x.layout == torch.sparse_coo:
        parts = [x._indices(), x._values()]
    elif x.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        parts = [x.values()]
    try:
        return [StorageWeakRef(part.untyped_storage()) for part in parts]
    except NotImplementedError:
        return []


class Unwritten:
    """Empty tensors that no operation has written. A kernel that PyTorch does not see may have."""

    def __init__(self) -> None:
        self._storages: set[StorageWeakRef] = set()

    def read(self, func: Any, args: Any, kwargs: Any, out: Any) -> bool:
        """Follow an operation; return True if it reads such a tensor, for the first time."""
        schema = getattr(func, "_schema", None)
        if schema is None:
            return False
        if base_of(func) in EMPTY:
            self._storages.update(_all_storages(out))
            return False
        given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
        written = {x.name for x in schema.arguments if x.alias_info is not None and x.alias_info.is_write}
        self._storages -= _all_storages([given.get(name) for name in written])
        if is_view(func) and not written:
            return False
        found = self._storages & _all_storages(list(given.values()))
        self._storages -= found
        return bool(found)


def _all_storages(tree: Any) -> set[StorageWeakRef]:
    return {ref for x in tree_leaves(tree) if isinstance(x, Tensor) for ref in storages(x)}


def custom_flops(operands: list[Tensor], depends: list[bool], weights: set[StorageWeakRef]) -> float:
    """Return the products of each token with the matrices that an operation reads."""
    read = [x for x, depend in zip(operands, depends, strict=True) if depend and x.ndim]
    matrices = [
        x
        for x, depend in zip(operands, depends, strict=True)
        if not depend and x.ndim >= 2 and (x.requires_grad or any(ref in weights for ref in storages(x)))
    ]
    tokens = max((x.numel() // max(x.shape[-1], 1) for x in read if not _is_index(x)), default=0)
    return 2.0 * tokens * sum(elements(x) for x in matrices)


def _is_index(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())
