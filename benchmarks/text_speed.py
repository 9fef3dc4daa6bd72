"""Time training steps of the models of text over compute (``study=laptop``), one thread, at each budget.

python benchmarks/text_speed.py --output benchmarks/results/text_speed.md --json benchmarks/results/text_speed.json

Training seconds of a study also measure the other work of the machine. Here the models of a budget take turns
step by step in one process, with the full step of the trainer, their tuned number of tokens per step, and the
same training FLOPs per token. So the ratio of tokens per second, times a multiplier in FLOPs, is the
multiplier in time. A second is one of the processor, which other work disturbs less.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from machine import Page, add_outputs, as_markdown, at_least_one, machine_line, read_arguments, settle
from overhead import NEVER, Harness, Times, compose, plan, silence, take_turns

from architectures.kernels import pointwise

BUDGETS = {"a": "laptop", "b": "laptop", "c": "laptop", "d": "cpu_text", "e": "cpu_text"}
"""Study of each budget, by its name in ``study.values.rung``."""
BASELINE = "decoder"
MODELS = {
    BASELINE: "decoder", "canon_decoder": "decoder", "mamba": "mamba", "no_convolution_mamba": "mamba",
    "hybrid": "hybrid",
}  # fmt: skip
"""Backbone of each variant."""
UNTUNED = {("hybrid", "d"), ("hybrid", "e"), ("no_convolution_mamba", "e")}
"""Models that have no runs at a budget."""
BLOCK = 5
"""Steps of a model in a round."""


def harness(rung: str, variant: str, folder: str, stack: ExitStack) -> Harness:
    """Return the trainer of a model at a budget, after one step."""
    never = (f"trainer.checkpoint_every={NEVER}", f"trainer.log_every={NEVER}")
    settings = compose(
        f"study={BUDGETS[rung]}", f"variant={variant}", f"backbone={MODELS[variant]}",
        f"study.values.rung={rung}", f"runs={folder}/{variant}", *never,
    )  # fmt: skip
    pointwise.choose(settings.device.kernels)
    trained = Harness(settings, plan(settings), stack)
    trained.step()
    return trained


def measure(rung: str, rounds: int) -> tuple[dict[str, int], dict[str, Times]]:
    """Return the tokens per step of each model, and the seconds of its steps: by the clock, of the processor."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack, silence():
        loops = {
            variant: harness(rung, variant, folder, stack)
            for variant in MODELS
            if (variant, rung) not in UNTUNED
        }
        times = take_turns(loops, rounds, BLOCK)
        return {name: loop.trainer.tokens_per_step for name, loop in loops.items()}, times


def speeds(tokens: int, times: Times) -> list[float]:
    """Return the quartiles of tokens per second of the processor, over rounds."""
    return [float(x) for x in np.percentile(tokens * BLOCK / times[:, :, 1].sum(axis=1), (25, 50, 75))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--rounds", type=at_least_one, default=20)
    add_outputs(parser)
    args = read_arguments(parser)
    settle(1)
    page = Page(args.output, args.json)
    page.say(f"{machine_line()}, load average {os.getloadavg()[0]:.1f}.")
    page.say(f"One thread, {args.rounds} rounds of {BLOCK} steps; medians and quartiles over rounds.")
    lines = []
    for rung in args.budgets:
        tokens, times = measure(rung, args.rounds)
        by_model = {name: speeds(tokens[name], times[name]) for name in tokens}
        page.note(rung, {"tokens_per_step": tokens, "tokens_per_second": by_model})
        for name, (low, median, high) in by_model.items():
            ratio = median / by_model[BASELINE][1]
            cells = f"{median:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{ratio:.2f}"
            lines.append([rung, name, str(tokens[name]), *cells])
            print(*lines[-1], flush=True)
    head = ["budget", "model", "tokens per step", "tokens per second", "quartiles", f"times {BASELINE}"]
    page.say(as_markdown(head, lines))


if __name__ == "__main__":
    main()
