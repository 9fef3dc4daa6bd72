"""A safetensors file of tensors that are divided among processes, written whole, one tensor at a time.

The library's own ``save_file`` takes all tensors at once, which no process has room for. The bytes are equal.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from experiments.training.parallel.dtensors import full_tensor

NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int16: "I16", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
"""Types and their names in the format. Tensors of the last come first in a file, so that all are aligned."""


class GatheredFile:
    """The tensors of a file, as this process holds them.

    The process of rank 0 calls ``write``, the others ``finish``; where ``write`` fails half-way, or is not
    reached, ``finish`` takes part in the gathering of the rest. All make it of the same names.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        order = list(NAMES)
        self._tensors = dict(sorted(tensors.items(), key=lambda item: (-order.index(item[1].dtype), item[0])))
        self._left = iter(self._tensors.values())

    def write(self, path: Path) -> None:
        """Write the file. Raises OSError."""
        with path.open("wb") as file:
            file.write(self._header())
            for whole in self._gathered():
                file.write(content(whole))

    def finish(self) -> None:
        """Gather what is left for the process that writes, or for none."""
        for _ in self._gathered():
            pass

    def _gathered(self) -> Iterator[Tensor]:
        for tensor in self._left:
            yield full_tensor(tensor)

    def _header(self) -> bytes:
        """Return the length of the description of the tensors, and the description."""
        entries, begin = {}, 0
        for name, tensor in self._tensors.items():
            end = begin + math.prod(tensor.shape) * tensor.element_size()
            entries[name] = {
                "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end],
            }  # fmt: skip
            begin = end
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text


def content(whole: Tensor) -> bytes:
    """Return the bytes of a tensor, as the format has them: in rows, the least significant byte first."""
    return whole.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
