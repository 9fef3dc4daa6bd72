"""Times a training step of each family and of the same model in other libraries.

python benchmarks/training.py --families decoder encoder --d-model 256 512 --lengths 256 512
python benchmarks/training.py --vocab 256 8192 --precision fp32 bf16 --output benchmarks/results/training.md

A step is forward, cross entropy, backward, clipping and fused AdamW, on random tokens, the same for all; bf16
is autocast over float32 weights. Every position is scored, of the encoder 15% of them, as a masked language
model is trained: ours computes logits only there, as in the harness, BERT's everywhere. The cross entropy is
the harness's for ours, and PyTorch's for peers. There is no dropout. All models of a row are in one
process and take turns step by step, in an order that rotates, so that a machine that slows down slows all;
the first two rounds are not counted. The page gives the medians, and the speed-up of ours over each
peer, with the quartiles of that ratio over the rounds; and the FLOPs of our model as a fraction of GEMM
peak in the same precision, measured between the rounds. With ``--compiled`` peers also run
under ``torch.compile``, and ours with compiled blocks; the additional time of their first step is
printed separately. With ``--threads 1`` all times are of the processor.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from machine import Page, add_outputs, as_markdown, clock, machine_line, read_arguments, settle
from peer_configs import FAMILIES, Shape
from peer_models import SCORED, SLOW, UNSCORED, Pair, Peer, make_pair
from torch import Tensor

from archbench.architectures.backbones.stack import Stack
from archbench.experiments.benchmark.timing import matmul_rate, quartiles

WARM = 2
"""Rounds that come first and are not counted."""
CPU = torch.device("cpu")


class Trained:
    """A model with its optimizer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.module = peer.module.train()
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-4, fused=True)
        self.seconds: list[float] = []
        self.first = 0.0
        """Seconds of the first step, in which a compiled model is compiled."""

    def step(self, tokens_BT: Tensor, target_BT: Tensor, bf16: bool) -> None:
        self.peer.before()
        begin = clock()
        self.loss(tokens_BT, target_BT, bf16).backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.seconds.append(clock() - begin)

    def loss(self, tokens_BT: Tensor, target_BT: Tensor, bf16: bool) -> Tensor:
        """The mean over the positions that are scored; models may skip logits at other positions."""
        scored_BT, target_N, wanted = target_BT != UNSCORED, target_BT.flatten(), {}
        if self.peer.sparse and not scored_BT.all():
            target_N, wanted = target_BT[scored_BT], {"scored_BT": scored_BT}
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits_BTV = self.peer.logits(tokens_BT, **wanted)
        return self.peer.loss(logits_BTV.flatten(0, 1), target_N)


def measure(
    family: str, shape: Shape, batch: int, bf16: bool, rounds: int, *, compiled: bool = False
) -> dict[str, Any]:
    """Return a row: the medians of all, ratios, and the fraction of GEMM peak."""
    torch.compiler.reset()
    pair = make_pair(family, shape, compiled=compiled)
    peers = [peer for peer in pair.theirs if not peer.once or shape.length <= SLOW]
    models = [Trained(peer) for peer in (pair.ours, *peers)]
    tokens_BT, target_BT = (torch.randint(shape.vocab_size, (batch, shape.length)) for _ in range(2))
    if family in SCORED:
        target_BT[torch.rand(target_BT.shape) >= SCORED[family]] = UNSCORED
    rates = []
    for turn in range(rounds + WARM):
        offset = turn % len(models)
        for model in (*models[offset:], *models[:offset]):
            if model.peer.once and turn != WARM:
                continue
            model.step(tokens_BT, target_BT, bf16)
        rates.append(matmul_rate(CPU, torch.bfloat16 if bf16 else torch.float32))
    for model in models:
        if not model.peer.once:
            model.first = model.seconds[0]
            del model.seconds[:WARM]
    flops = step_flops(pair, batch, shape.length, float((target_BT != UNSCORED).float().mean()))
    return row(pair, models, max(rates), flops)


def step_flops(pair: Pair, batch: int, length: int, scored: float) -> float:
    """FLOPs of our step, with logits at the share ``scored`` of all positions."""
    model = pair.backbone
    flops = model.sequence_flops(length, length if model.capabilities.encoder_decoder else 0).total
    if scored < 1:
        assert isinstance(model, Stack)
        flops -= (1 - scored) * model.prediction_flops(length)
    return 3 * batch * flops


def row(pair: Pair, models: list[Trained], rate: float, flops: float) -> dict[str, Any]:
    our_model, *peer_models = models
    median = statistics.median(our_model.seconds)
    peers = {}
    for peer in peer_models:
        ratios = [b / a for a, b in zip(our_model.seconds, peer.seconds, strict=False)]
        low, _, high = quartiles(ratios)
        peers[peer.peer.name] = {
            "seconds": statistics.median(peer.seconds),
            "ratio": statistics.median(peer.seconds) / median,
            "ratio_quartiles": [low, high],
            "rounds": len(peer.seconds),
            "mixed": peer.peer.mixed,
        }
        if peer.peer.compiled:
            peers[peer.peer.name]["compile_seconds"] = peer.first - statistics.median(peer.seconds)
    low_quartile, _, high_quartile = quartiles(our_model.seconds)
    return {
        "seconds": median,
        "seconds_quartiles": [low_quartile, high_quartile],
        "matmul_share": flops / median / rate,
        "matmul_flops_per_second": rate,
        "peers": peers,
        "kernels": pair.backbone.kernels(),
    }


def cells(args: argparse.Namespace) -> Iterator[tuple[str, Shape, str]]:
    for family, d_model, length, vocab_size, precision in itertools.product(
        args.families, args.d_model, args.lengths, args.vocab, args.precision
    ):
        shape = Shape(d_model=d_model, layers=args.layers, vocab_size=vocab_size, length=length)
        yield family, shape, precision


def line(measured_row: dict[str, Any]) -> list[str]:
    low, high = (1000 * x for x in measured_row["seconds_quartiles"])
    ratios = [
        f"{peer['ratio']:.2f} ({peer['ratio_quartiles'][0]:.2f} to {peer['ratio_quartiles'][1]:.2f}) {name}"
        + (f" in {peer['compile_seconds']:.0f} s" if "compile_seconds" in peer else "")
        for name, peer in measured_row["peers"].items()
    ]
    names = ("family", "d_model", "length", "vocab_size", "precision")
    milliseconds = f"{1000 * measured_row['seconds']:.1f} ({low:.1f} to {high:.1f})"
    return [
        *(str(measured_row[name]) for name in names),
        milliseconds,
        f"{measured_row['matmul_share']:.0%}",
        "; ".join(ratios),
    ]


def main() -> None:
    args = parse()
    settle(args.threads)
    page = Page(args.output, args.json)
    page.say(machine_line() + ".")
    page.say(
        f"A training step of {args.layers} layers on {args.tokens} tokens: milliseconds of ours (median and "
        "quartiles), its FLOPs as a share of the rate of a matrix product, and how many times as fast it is."
    )
    rows = []
    for family, shape, precision in cells(args):
        batch = max(1, args.tokens // shape.length)
        half = precision == "bf16"
        measured = measure(family, shape, batch, half, args.rounds, compiled=args.compiled)
        settings = {"family": family, **vars(shape), "batch_size": batch, "precision": precision}
        rows.append({**settings, "threads": args.threads, **measured})
        page.note("training", rows)
        print(*line(rows[-1]), flush=True)
    columns = ("family", "d_model", "T", "vocabulary", "precision", "ms", "of matmul", "times as fast as")
    page.say(as_markdown(columns, [line(measured_row) for measured_row in rows]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--d-model", type=int, nargs="+", default=[256])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256])
    parser.add_argument("--vocab", type=int, nargs="+", default=[256])
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that are counted")
    parser.add_argument("--compiled", action="store_true", help="also run peers under torch.compile")
    add_outputs(parser)
    return read_arguments(parser)


if __name__ == "__main__":
    main()
