"""Profiles a training step of each family: by type of operator, and the slowest operators.

python benchmarks/step_profile.py --output benchmarks/results/profile.md --figure docs/results/profile.svg
python benchmarks/step_profile.py --families moe s4 --d-model 512 --precision bf16 --threads 1

The models are those that benchmarks/training.py times, and S4, the hybrid and the diffusion model in the
same size; the step is also the same: forward, cross entropy at every position, backward, clipping and fused
AdamW, on random tokens. Two steps come first; the counted ones run under PyTorch's profiler, which measures
the time that the main thread spends in an operator itself, not in those that it calls; with multiple threads
that is time by the clock. The rest is Python's, and so is part of the time of operators that are written in
it: our C++ kernels are called from Python, and the optimizer is.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from machine import Page, add_outputs, as_markdown, machine_line, read_arguments, settle
from operator_kinds import KINDS, PHASES, Spent, spent
from peer_configs import FAMILIES as PEERS
from peer_configs import Shape
from peer_models import make_pair, own_loss, run_ours
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.style import PALETTE, faint, make_panels
from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.architectures.backbones.s4 import S4, S4Config
from archbench.architectures.layers.attention.config import AttentionConfig

FAMILIES = (*PEERS, "s4", "hybrid", "masked_diffusion")
WARM = 2
"""Steps that come first and are not counted."""
LISTED = 5
"""Operators of a family that are told."""


def make_model(family: str, shape: Shape) -> Backbone:
    """Our model of a family, of the size of ``shape``."""
    if family in PEERS:
        return make_pair(family, shape, extra=False).backbone
    torch.manual_seed(0)
    size: dict[str, Any] = {"d_model": shape.d_model, "num_layers": shape.layers}
    sizes = {"vocab_size": shape.vocab_size, "max_length": shape.length}
    if family == "s4":
        return S4(S4Config(**size), **sizes)
    attention = AttentionConfig(num_heads=shape.heads)
    if family == "hybrid":
        return Hybrid(HybridConfig(**size, attention=attention), **sizes)
    return MaskedDiffusion(MaskedDiffusionConfig(**size, attention=attention), **sizes)


class Training:
    """The training of a model, with steps as ranges of a profile."""

    def __init__(self, model: Backbone, bf16: bool) -> None:
        self.model, self.bf16 = model.train(), bf16
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(self, tokens_BT: Tensor, target_BT: Tensor) -> None:
        with record_function("forward"), torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits_BTV = run_ours(self.model, tokens_BT)
        with record_function("cross entropy"):
            loss = own_loss(logits_BTV.flatten(0, 1), target_BT.flatten())
        with record_function("backward"):
            loss.backward()
        with record_function("clipping"):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with record_function("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def measure(family: str, shape: Shape, batch: int, bf16: bool, steps: int) -> tuple[Spent, float]:
    """Where the time of the steps went, and seconds of a step by the clock, the profiler's work included."""
    training = Training(make_model(family, shape), bf16)
    tokens_BT, target_BT = (torch.randint(shape.vocab_size, (batch, shape.length)) for _ in range(2))
    for _ in range(WARM):
        training.step(tokens_BT, target_BT)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        begin = time.perf_counter()
        for _ in range(steps):
            training.step(tokens_BT, target_BT)
        seconds = (time.perf_counter() - begin) / steps
    return spent(profiled.events()), seconds


def as_numbers(profile: Spent, seconds: float, steps: int) -> dict[str, Any]:
    """Values for JSON: fractions of a step, and calls in a step."""
    return {
        "seconds": seconds,
        "kinds": {kind: profile.share(kind) for kind in KINDS},
        "backward": {kind: profile.share(kind, "backward") for kind in KINDS},
        "phases": {phase: profile.phase(phase) for phase in PHASES},
        "operators": [
            {"name": name, "kind": kind, "share": share, "calls": calls / steps}
            for name, kind, share, calls in profile.longest(LISTED)
        ],
    }


def shares_table(profiles: dict[str, dict[str, Any]]) -> str:
    """A line for each type and each phase, a column for each family."""
    lines = [[kind, *(_percent(profile["kinds"][kind]) for profile in profiles.values())] for kind in KINDS]
    for phase in ("forward", "backward"):
        lines.append(
            [f"in all: {phase}", *(_percent(profile["phases"][phase]) for profile in profiles.values())]
        )
    lines.append(["ms of a step", *(f"{1000 * profile['seconds']:.0f}" for profile in profiles.values())])
    return as_markdown(("share of a step", *profiles), lines)


def operators_table(profiles: dict[str, dict[str, Any]]) -> str:
    """The slowest operators of each family."""
    lines = [
        [
            family,
            f"`{operator['name']}`",
            operator["kind"],
            f"{operator['calls']:g}",
            _percent(operator["share"]),
        ]
        for family, measured in profiles.items()
        for operator in measured["operators"]
    ]
    return as_markdown(("family", "operator", "kind", "calls", "share"), lines)


def draw(profiles: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw a bar for each family, stacked by type."""
    figure, [cell] = make_panels([""])
    offsets = [0.0] * len(profiles)
    colours = [shade for colour in PALETTE for shade in (colour, faint(colour, 0.45))]
    for kind, colour in zip(KINDS, colours, strict=False):
        widths = [100 * profile["kinds"][kind] for profile in profiles.values()]
        bars = go.Bar(
            x=widths, y=list(profiles), base=offsets, orientation="h", name=kind, marker={"color": colour}
        )
        figure.add_trace(bars, **cell)
        offsets = [start + width for start, width in zip(offsets, widths, strict=True)]
    figure.update_xaxes(title_text="% of a training step", range=[0, 100], **cell)
    figure.update_yaxes(autorange="reversed", showgrid=False, **cell)
    figure.update_layout(barmode="overlay", width=900, height=40 * len(profiles) + 240)
    path.write_bytes(printed(figure, "svg"))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def main() -> None:
    args = parse()
    settle(args.threads)
    page = Page(args.output, args.json)
    page.say(machine_line() + ".")
    batch = max(1, args.tokens // args.length)
    page.say(
        f"Steps of {args.layers} layers of d_model {args.d_model} on {batch} sequences of {args.length} "
        f"tokens, vocabulary {args.vocab}, {args.precision}; {args.steps} of each family are counted."
    )
    shape = Shape(d_model=args.d_model, layers=args.layers, vocab_size=args.vocab, length=args.length)
    profiles = {}
    for family in args.families:
        measured, seconds = measure(family, shape, batch, args.precision == "bf16", args.steps)
        profiles[family] = as_numbers(measured, seconds, args.steps)
        page.note("profile", profiles)
        kinds = sorted(KINDS, key=profiles[family]["kinds"].__getitem__, reverse=True)[:LISTED]
        summary = (f"{kind} {_percent(profiles[family]['kinds'][kind])}" for kind in kinds)
        print(f"{family}: {', '.join(summary)}", flush=True)
    page.say(shares_table(profiles))
    page.say(operators_table(profiles))
    if args.figure is not None:
        draw(profiles, args.figure)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="that count")
    parser.add_argument("--figure", type=Path, help="SVG file to draw the shares in, a bar for each family")
    add_outputs(parser)
    args = read_arguments(parser)
    if args.figure is not None and not args.figure.parent.is_dir():
        parser.error(f"--figure {args.figure}: there is no folder {args.figure.parent}; make it first")
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: at least 1")
    return args


if __name__ == "__main__":
    main()
