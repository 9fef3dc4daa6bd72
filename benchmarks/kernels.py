"""Times each C++ kernel and PyTorch's operations, in processor time: the source of ``where.py``.

python benchmarks/kernels.py --output benchmarks/results/kernels.md
python -m archbench.architectures.kernels.cpu.instruction_sets avx2 python benchmarks/kernels.py

Both run in turns in one process, in alternating order; the first turns are not counted. The page gives the
speed-up of the kernel, as the median of the ratios over the turns, and their quartiles: for
training (forward and backward) and for a forward pass without gradients. Brackets: models use PyTorch
there. ``attention.py`` has attention with masks and in longer sequences.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from machine import Page, add_outputs, as_markdown, machine_line, read_arguments, settle

from archbench.architectures.kernels.cpu import where
from archbench.architectures.kernels.cpu.measure import (
    Case,
    activation_case,
    attention_case,
    compare,
    entropy_case,
    linear_cases,
    norm_case,
    rotary_case,
    scan_cases,
)
from archbench.experiments.benchmark.timing import quartiles

WARM = 2
TURN_SECONDS = 0.02
"""A turn repeats a call until about this much has passed."""
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
ATTENTION = (
    (32, 4, 24, 16),
    (16, 4, 64, 14),
    (16, 4, 64, 16),
    (4, 4, 256, 16),
    (4, 8, 256, 32),
    (2, 8, 512, 64),
)
ROWS = ((64, 64), (256, 64), (1024, 64), (1024, 256), (4096, 512))
HEADS = ((1, 4, 64, 16), (4, 4, 256, 16), (4, 16, 256, 16), (8, 8, 512, 64))
LOGITS = ((64, 64), (256, 64), (1024, 64), (1024, 256), (1024, 8192))
SCANS = ((2, 64, 64, 16), (8, 64, 96, 16), (4, 256, 128, 16), (4, 256, 512, 16), (1, 2048, 256, 16))
LINEAR = (
    (2, 64, 2, 16),
    (4, 256, 2, 24),
    (4, 256, 2, 32),
    (4, 256, 4, 64),
    (2, 256, 4, 128),
    (1, 2048, 2, 64),
)


def cases(kind: str, dtype: torch.dtype) -> Iterator[Case]:
    if kind == "attention":
        for causal in (True, False):
            yield from (attention_case(*size, dtype, causal=causal) for size in ATTENTION)
    elif kind == "pointwise":
        yield from (norm_case(*size, dtype) for size in ROWS)
        for name in ("silu", "gelu", "gelu_tanh"):
            yield from (activation_case(name, *size, dtype, gated=True) for size in ROWS)
        yield from (activation_case("gelu_tanh", *size, dtype, gated=False) for size in ROWS)
        yield from (rotary_case(*size, dtype) for size in HEADS)
        yield from (entropy_case(*size, dtype) for size in LOGITS)
    elif dtype == torch.float32:
        for size in SCANS:
            yield from scan_cases(*size)
        for size in LINEAR:
            yield from linear_cases(*size)


def measure(case: Case, dtype: torch.dtype, turns: int) -> dict[str, Any]:
    row: dict[str, Any] = {"kernel": case.kernel, "size": case.size}
    for name, trained in (("training", True), ("inference", False)):
        pairs = compare(case, trained=trained, turns=turns + WARM, seconds=TURN_SECONDS)[WARM:]
        low, ratio, high = quartiles([torch_seconds / cpp_seconds for cpp_seconds, torch_seconds in pairs])
        used = case.kernel == "attention" or where.faster(case.kernel, case.operands[0], trained=trained)
        cpp_seconds, torch_seconds = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
        row[name] = {
            "ratio": ratio,
            "quartiles": [low, high],
            "used": used,
            "seconds": [cpp_seconds, torch_seconds],
        }
    return row


def line(row: dict[str, Any]) -> list[str]:
    columns = []
    for kind in ("training", "inference"):
        low, high = row[kind]["quartiles"]
        text = f"{row[kind]['ratio']:.2f} ({low:.2f} to {high:.2f})"
        columns.append(text if row[kind]["used"] else f"[{text}]")
    milliseconds = f"{1e3 * row['training']['seconds'][0]:.3f}"
    return [row["kernel"], row["precision"], row["size"], *columns, milliseconds]


def main() -> None:
    args = parse()
    settle(1)
    page = Page(args.output, args.json)
    page.say(machine_line() + ".")
    page.say(
        "How many times as fast as PyTorch's way each C++ kernel is, in processor time of one thread "
        "(median, quartiles; in brackets where models take PyTorch's way); milliseconds of its forward and "
        "backward pass."
    )
    rows: list[dict[str, Any]] = []
    for kind in args.kinds:
        for precision in args.precision:
            for case in cases(kind, PRECISIONS[precision]):
                rows.append({"precision": precision, **measure(case, PRECISIONS[precision], args.turns)})
                page.note("kernels", rows)
                print(*line(rows[-1]), flush=True)
    columns = ("kernel", "precision", "size", "training", "inference", "ms")
    page.say(as_markdown(columns, [line(row) for row in rows]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("attention", "pointwise", "scans")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--turns", type=int, default=7, help="that count")
    add_outputs(parser)
    return read_arguments(parser)


if __name__ == "__main__":
    main()
