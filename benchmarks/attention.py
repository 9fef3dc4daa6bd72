"""Times attention over full sequences on a CPU: the C++ kernel and PyTorch's, forward and backward.

python benchmarks/attention.py --output benchmarks/results/attention.md

Both compute the same attention in turns in one process, in alternating order; the first turns are not
counted. The page gives the speed-up of the kernel in processor time, as the ratio of medians, for
training (forward and backward) and for a forward pass without gradients. In brackets: the rule of
``architectures.kernels.attention`` leaves this case to PyTorch. PyTorch's attention is that of a layer under
``device.kernels=torch``: its fused attention, plain products for a trained bias, the definition for
a soft cap. Memory is what autograd saves for the backward pass, without the operands.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import Page, add_outputs, as_markdown, machine_line, read_arguments, settle
from torch import Tensor

from archbench.architectures.kernels.attention import blockwise
from archbench.architectures.kernels.cpu.transformer_ops import cpp_attention, seen_keys
from archbench.architectures.layers.attention.functional import Scores, attend, attention_mask

WARM = 2
"""Turns of each that come first and are not counted."""
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
KINDS = ("causal", "none", "window", "documents", "padding", "T5 bias", "soft cap")


def settings_of(kind: str, B: int, H: int, T: int) -> dict[str, Any]:
    """The mask, bias and soft cap of a type. A window is T / 4, documents are four, padding a quarter."""
    places_1T = torch.arange(T)[None]
    causal = attention_mask(places_1T, places_1T, causal=True, window=None)
    document_T = torch.arange(T) * 4 // T
    same_TT = document_T[:, None] == document_T
    lengths_B1 = T // 2 + (torch.arange(B)[:, None] * T // (2 * max(1, B - 1)))
    return {
        "causal": {"causal": True},
        "none": {},
        "window": {"mask": attention_mask(places_1T, places_1T, causal=True, window=T // 4)},
        "documents": {"mask": causal & same_TT},
        "padding": {"mask": (places_1T < lengths_B1)[:, None, None]},
        "T5 bias": {"mask": causal, "bias": torch.randn(1, H, T, T, requires_grad=True)},
        "soft cap": {"mask": causal, "softcap": 20.0},
    }[kind]


def kernels(streams: list[Tensor], settings: dict[str, Any]) -> dict[str, Callable[[], Tensor]]:
    """The two ways to compute it."""
    scale, cap = streams[0].shape[3] ** -0.5, settings.get("softcap")
    rest = {name: value for name, value in settings.items() if name not in ("mask", "softcap")}
    mask = settings.get("mask")

    def ours() -> Tensor:
        seen = None if mask is None else seen_keys(mask, streams[0].shape[2])
        return cpp_attention(*streams, scale=scale, softcap=cap, seen=seen, **rest)

    def theirs() -> Tensor:
        kernel = "sdpa" if cap is None else "reference"
        return attend(*streams, Scores(scale=scale, softcap=cap), kernel=kernel, mask=mask, **rest)

    return {"ours": ours, "theirs": theirs}


def in_turns(runs: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + WARM):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            begin = time.process_time()
            runs[name]()
            seconds[name].append(time.process_time() - begin)
    return {name: statistics.median(times[WARM:]) for name, times in seconds.items()}


def kept_bytes(run: Callable[[], Tensor], operands: list[Tensor]) -> int:
    """Bytes that autograd saves for the backward pass, without the operands."""
    operand_pointers, saved_bytes = {x.untyped_storage().data_ptr() for x in operands}, {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        saved_bytes[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        result = run()
    del result
    return sum(size for at, size in saved_bytes.items() if at not in operand_pointers)


def measure(kind: str, precision: str, T: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the speed-ups of a case, whether the rule selects the kernel, and the memory of both."""
    B, H, E, dtype = max(1, args.tokens // T), args.heads, args.head_dim, PRECISIONS[precision]
    streams = [torch.randn(B, T, H, E, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    slope = torch.randn(B, T, H, E, dtype=dtype).transpose(1, 2)
    settings = settings_of(kind, B, H, T)
    operands = [*streams, *(x for x in (settings.get("bias"),) if x is not None)]
    ways = kernels(streams, settings)

    def train(way: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(way(), operands, slope)

    trained = in_turns({name: train(way) for name, way in ways.items()}, args.turns)
    takes = [blockwise(*streams, scale=1.0, **settings) is not None]
    memory = {name: kept_bytes(way, operands) for name, way in ways.items()}
    with torch.no_grad():
        forward = in_turns(dict(ways), args.turns)
        takes.append(blockwise(*streams, scale=1.0, **settings) is not None)
    return {
        "mask": kind, "precision": precision, "length": T, "batch_size": B, "heads": H, "head_dim": E,
        "training": trained["theirs"] / trained["ours"], "training_seconds": trained,
        "forward": forward["theirs"] / forward["ours"], "forward_seconds": forward,
        "takes_training": takes[0], "takes_forward": takes[1], "kept_bytes": memory,
    }  # fmt: skip


def line(row: dict[str, Any]) -> list[str]:
    ratios = [
        f"{row[name]:.2f}" if row[f"takes_{name}"] else f"({row[name]:.2f})"
        for name in ("training", "forward")
    ]
    memory = [f"{row['kept_bytes'][name] / 2**20:.1f}" for name in ("ours", "theirs")]
    milliseconds = f"{1000 * row['training_seconds']['ours']:.2f}"
    return [row["mask"], row["precision"], str(row["length"]), *ratios, milliseconds, *memory]


def main() -> None:
    args = parse()
    settle(args.threads)
    page = Page(args.output, args.json)
    page.say(machine_line() + ".")
    page.say(
        f"Attention of {args.heads} heads of {args.head_dim} over {args.tokens} tokens in sequences of T: "
        "how many times as fast as PyTorch's the C++ kernel is, in brackets where a model takes PyTorch's; "
        "milliseconds of the kernel's forward and backward pass; MiB kept for the backward pass."
    )
    rows = []
    for precision in args.precision:
        for kind in args.masks:
            for length in args.lengths:
                rows.append(measure(kind, precision, length, args))
                page.note("attention", rows)
                print(*line(rows[-1]), flush=True)
    columns = ("mask", "precision", "T", "training", "forward", "ms", "MiB", "MiB, PyTorch")
    page.say(as_markdown(columns, [line(row) for row in rows]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--masks", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--tokens", type=int, default=2048, help="of a batch")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7, help="that count")
    add_outputs(parser)
    return read_arguments(parser)


if __name__ == "__main__":
    main()
