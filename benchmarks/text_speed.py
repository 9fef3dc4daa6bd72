"""Time training steps of the models of text over compute (``study=laptop``), one thread, at each budget.

python benchmarks/text_speed.py --rounds 40 --output benchmarks/results/text_speed.md \
    --json benchmarks/results/text_speed.json

Training seconds of a study also measure the other work of the machine. Here the models of a budget take turns
step by step in one process, with the full step of the trainer, their tuned number of tokens per step, and the
same training FLOPs per token. The tokens of a budget over this speed are its seconds, over which the
baseline's curve is inverted for the multiplier in time. A second is one of the processor, which other work
disturbs less. The largest budget has the baseline only, beside itself at the budget before: from their ratio
follows its speed on another machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import numpy as np
from machine import Page, add_outputs, as_markdown, at_least_one, machine_line, read_arguments, settle
from overhead import NEVER, Harness, compose, plan, silence, take_turns

from archbench.architectures import fast_paths

BUDGETS = {
    4e10: ("laptop", "a"), 1.3e11: ("laptop", "b"), 4e11: ("laptop", "c"), 1.3e12: ("cpu_text", "d"),
    4e12: ("cpu_text", "e"), 1.3e13: ("cpu_text", "f"),
}  # fmt: skip
"""Study and ``study.values.rung`` of each budget, by its FLOPs."""
BASELINE = "decoder"
MODELS = {
    BASELINE: ("decoder", "decoder"), "decoder_canon": ("canon_decoder", "decoder"),
    "mamba": ("mamba", "mamba"), "mamba_no_convolution": ("no_convolution_mamba", "mamba"),
    "hybrid": ("hybrid", "hybrid"),
    "mamba2": ("mamba2", "mamba2"), "gated_deltanet": ("gated_deltanet", "gated_deltanet"),
    "kda": ("kda", "kda"), "moe": ("moe", "moe"), "s4": ("s4", "s4"),
}  # fmt: skip
"""Variant and backbone of each model."""
LARGEST = 1.3e13
"""The budget of the baseline alone."""
BEFORE = 4e12
NOT_RUN = {
    (model, flops)
    for model in ("mamba2", "gated_deltanet", "kda", "moe", "s4")
    for flops, (study, _) in BUDGETS.items()
    if study == "laptop"
}
"""Models that have no runs at a budget."""
BLOCK = 5
"""Steps of a model in a round."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Training speed of a model at a budget."""

    model: str
    flops: float
    tokens_per_step: int
    quartiles: list[float]
    """Of tokens per second of the processor, over rounds."""


def harness(flops: float, model: str, folder: str, stack: ExitStack) -> Harness:
    """Return the trainer of a model at a budget, after one step."""
    study, rung = BUDGETS[flops]
    variant, backbone = MODELS[model]
    settings = compose(
        f"study={study}", f"variant={variant}", f"backbone={backbone}", f"study.values.rung={rung}",
        f"runs={folder}/{model}", f"trainer.checkpoint_every={NEVER}", f"trainer.log_every={NEVER}",
    )  # fmt: skip
    fast_paths.choose(settings.device.kernels)
    trained = Harness(settings, plan(settings), stack)
    trained.step()
    return trained


def timed(flops: float) -> list[tuple[str, float]]:
    """Return the models and budgets that take turns, the baseline first."""
    if flops == LARGEST:
        return [(BASELINE, BEFORE), (BASELINE, LARGEST)]
    return [(model, flops) for model in MODELS if (model, flops) not in NOT_RUN]


def measure(flops: float, rounds: int) -> list[Speed]:
    """Return the speed of each model at a budget; they take turns step by step."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack, silence():
        loops = {
            f"{model} {of:g}": (harness(of, model, f"{folder}/{of:g}", stack), model, of)
            for model, of in timed(flops)
        }
        times = take_turns({name: loop for name, (loop, _, _) in loops.items()}, rounds, BLOCK)
    found = []
    for name, (loop, model, of) in loops.items():
        tokens, processor = loop.trainer.tokens_per_step, times[name][:, :, 1].sum(axis=1)
        quartiles = np.percentile(tokens * BLOCK / processor, (25, 50, 75)).tolist()
        found.append(Speed(model=model, flops=of, tokens_per_step=tokens, quartiles=quartiles))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--rounds", type=at_least_one, default=20)
    add_outputs(parser)
    args = read_arguments(parser)
    settle(1)
    page = Page(args.output, args.json)
    machine = machine_line()
    page.say(f"{machine}, load average {os.getloadavg()[0]:.1f}.")
    page.say(f"One thread, {args.rounds} rounds of {BLOCK} steps; medians and quartiles over rounds.")
    speeds: list[Speed] = []
    lines = []
    for flops in args.budgets:
        of_budget = measure(flops, args.rounds)
        speeds += of_budget
        for speed in of_budget:
            low, median, high = speed.quartiles
            ratio = median / of_budget[0].quartiles[1]
            cells = f"{median:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{ratio:.2f}"
            lines.append([f"{speed.flops:g}", speed.model, str(speed.tokens_per_step), *cells])
            print(*lines[-1], file=sys.stderr, flush=True)
    page.note("machine", machine)
    page.note("speeds", [asdict(speed) for speed in speeds])
    head = ["FLOPs", "model", "tokens per step", "tokens per second", "quartiles", f"times {BASELINE}"]
    page.say(as_markdown(head, lines))


if __name__ == "__main__":
    main()
