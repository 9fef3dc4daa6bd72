"""Times one layer of Mamba and of Mamba-2, forward and backward, on each path of the scan and of peers.

python benchmarks/scan.py --lengths 512 2048 --threads 2
python benchmarks/scan.py --peers mambapy --output benchmarks/results/scan.md
python benchmarks/scan.py --layers mamba2 --peers transformers
python benchmarks/scan.py --growth --output benchmarks/results/growth.md

The layer has d_model 256 and reads 8 sequences in float32. Each round times every candidate once, so
that a machine that slows down slows them all; the first round is not counted (it compiles).
Printed are the median, the quartiles, and how many times as fast the layer is as each peer.

The Mamba of ``transformers`` needs most of a minute at length 512 and grows with the square of the
length: it runs once, not warmed up, and not on more than 512 tokens. ``--growth`` measures how
the costs of the recurrent families grow with the length instead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from growth import CONTEXTS, FAMILIES, GROWTH_LENGTHS, report_growth
from machine import Page, add_outputs, as_markdown, machine_line, read_arguments, settle
from torch import Tensor, nn

from archbench.architectures.layers.context import Context
from archbench.architectures.mixers.mamba import SelectiveConfig, SelectiveSSM
from archbench.architectures.mixers.mamba2 import SSD, SSDConfig

SLOW = 512
"""The Mamba of transformers is not run on longer sequences."""
PEERS = ("mambapy", "transformers")


@dataclass(kw_only=True)
class Candidate:
    """A layer to time."""

    name: str
    module: nn.Module
    run: Callable[[Tensor], Tensor]
    peer: bool = False
    """Of another library."""
    once: bool = False
    """Too slow for more than one round."""
    seconds: list[float] = field(default_factory=list)


def ours(kind: str, d_model: int, length: int) -> Iterator[Candidate]:
    """Our layer on each path that can run here."""
    context = Context(positions_BT=torch.arange(length)[None])
    for path in ("cpp", "torch", "reference"):
        layer: SelectiveSSM | SSD
        if kind == "mamba":
            layer = SelectiveSSM(d_model, SelectiveConfig(scan=path))
        else:
            layer = SSD(d_model, SSDConfig(num_heads=8, scan=path))
        layer.initialise(1)
        yield Candidate(name=path, module=layer, run=lambda x, layer=layer: layer(x, context))  # type: ignore[misc]


def theirs(kind: str, d_model: int, length: int, peers: list[str]) -> Iterator[Candidate]:
    """The same layer from the requested peers, which are slow to import."""
    if "mambapy" in peers:
        from peers import mambapy_layers

        for name, module in mambapy_layers(kind, d_model):
            yield Candidate(name=name, module=module, run=module, peer=True)
    if "transformers" in peers and (kind == "mamba2" or length <= SLOW):
        from peers import transformers_layers

        for name, module in transformers_layers(kind, d_model):
            yield Candidate(name=name, module=module, run=module, peer=True, once=kind == "mamba")


def time_in_rounds(candidates: list[Candidate], x_BTD: Tensor, repeats: int) -> None:
    """Fills in the seconds of forward and backward."""
    for turn in range(repeats + 1):
        for candidate in candidates:
            if candidate.once and turn != 1:
                continue
            candidate.module.zero_grad()
            x_BTD.grad = None
            begin = time.perf_counter()
            candidate.run(x_BTD).sum().backward()
            if turn > 0:
                candidate.seconds.append(time.perf_counter() - begin)


def rows(kind: str, length: int, candidates: list[Candidate]) -> list[list[str]]:
    """Lines of the table."""
    medians = {c.name: statistics.median(c.seconds) for c in candidates}
    peers = [c.name for c in candidates if c.peer]
    lines = []
    for candidate in candidates:
        low, high = (1000 * q for q in _quartiles(candidate.seconds))
        ratios = "" if candidate.peer else "; ".join(
            f"{medians[peer] / medians[candidate.name]:.2f} {peer}" for peer in peers
        )  # fmt: skip
        median = f"{1000 * medians[candidate.name]:.1f}"
        lines.append([kind, str(length), candidate.name, median, f"{low:.1f} to {high:.1f}", ratios])
    return lines


def _quartiles(times: list[float]) -> tuple[float, float]:
    if len(times) == 1:
        return times[0], times[0]
    cuts = statistics.quantiles(times, n=4, method="inclusive")
    return cuts[0], cuts[2]


def main() -> None:
    args = parse()
    settle(args.threads)
    page = Page(args.output, args.json)
    page.say(machine_line() + ".")
    if args.growth:
        lengths = args.lengths or GROWTH_LENGTHS
        report_growth(page, args.layers, lengths, args.contexts, args.d_model, args.repeats)
        return
    page.say(f"Forward and backward of one layer, d_model {args.d_model}, batch {args.batch}, float32.")
    columns = ("layer", "T", "path or peer", "ms, median", "quartiles", "times as fast as")
    for kind in args.layers or ["mamba", "mamba2"]:
        lines = []
        for length in args.lengths or [512, 2048]:
            torch.manual_seed(0)
            candidates = [
                *ours(kind, args.d_model, length),
                *theirs(kind, args.d_model, length, args.peers),
            ]
            x_BTD = torch.randn(args.batch, length, args.d_model, requires_grad=True)
            time_in_rounds(candidates, x_BTD, args.repeats)
            lines += rows(kind, length, candidates)
        page.say(as_markdown(columns, lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", help="default 512 2048; with --growth 512 ... 8192")
    parser.add_argument("--layers", nargs="+", help="default mamba mamba2; with --growth all families")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, default=[], help="libraries to compare with ours"
    )
    parser.add_argument("--growth", action="store_true", help="how costs grow with the length")
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=CONTEXTS, help="of --growth, to decode after"
    )
    add_outputs(parser)
    args = read_arguments(parser)
    families = tuple(FAMILIES) if args.growth else ("mamba", "mamba2")
    for kind in args.layers or ():
        if kind not in families:
            parser.error(f"--layers {kind}: options: {', '.join(families)}")
    return args


if __name__ == "__main__":
    main()
