"""Times generation of masked diffusion: blocks with a cache and few steps, and one token a full pass.

python benchmarks/diffusion.py --runs /tmp/diffusion --output benchmarks/results/diffusion.md

Three models of one size are trained on the embedded text for ``--budget`` tokens each, unless their runs
exist: ``masked_diffusion``, which generates one token in each forward pass over all text (first hitting,
an exact sampler); ``block_diffusion``, which caches finished blocks and commits multiple tokens
of a block in a pass (ancestral, less exact with fewer steps); and a decoder, which judges both.
The speed-up is that of the fewest steps with texts that the judge finds no less likely than those of one
token a pass, and which are not more repetitive, within ``MARGIN``.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import Page, add_outputs, as_markdown, machine_line, read_arguments, settle

MARGIN = 0.1
"""Bits per byte under the judge, and nats of entropy, that texts may be worse and still count as equally
good: texts that repeat themselves are likely, and have little entropy."""
BLOCK = 16
"""Tokens of a block."""
STEPS = (16, 8, 4, 2, 1)
"""Passes over a block, but for the one that puts it into the cache."""


def command(module: str, *words: str) -> None:
    started = [sys.executable, "-m", f"archbench.experiments.{module}", *words]
    subprocess.run(started, check=True, stdout=subprocess.DEVNULL)


def train(backbone: str, args: argparse.Namespace, runs: Path) -> Path:
    """The folder of a trained model. An existing run is not trained again."""
    overrides = (
        f"backbone={backbone}",
        "task=text",
        f"scale={args.scale}",
        f"budget.tokens={args.budget}",
        f"study.name=diffusion-{backbone}",
        "device=cpu",
        f"device.threads={args.threads}",
        f"runs={runs}",
        *((f"objective.block_length={BLOCK}",) if backbone == "block_diffusion" else ()),
    )
    command("train", *overrides)
    return next(path.parent for path in runs.glob(f"diffusion-{backbone}/*/s0/result.json"))


def sample(run: Path, judge: Path, args: argparse.Namespace, method: str, steps: int) -> dict[str, float]:
    """Tokens a second, passes, and the scores of the judge."""
    with tempfile.TemporaryDirectory() as folder:
        command(
            "sample_quality",
            f"run={run}",
            f"judge={judge}",
            f"filling.method={method}",
            f"steps=[{steps}]",
            f"num_samples={args.samples}",
            "batch_size=1",
            f"length={args.length}",
            f"device.threads={args.threads}",
            f"output={folder}",
        )
        with (Path(folder) / "quality.csv").open(encoding="utf-8") as file:
            row = next(entry for entry in csv.DictReader(file) if entry["text"] == "samples")
    names = ("tokens_per_second", "passes", "bits_per_byte", "entropy")
    return {name: float(row[name]) for name in names}


def measure(args: argparse.Namespace, runs: Path) -> list[dict[str, Any]]:
    """Return a row for each sampler; the first is one token a full pass."""
    judge = train("decoder", args, runs)
    one_by_one, blocks = train("masked_diffusion", args, runs), train("block_diffusion", args, runs)
    baseline = sample(one_by_one, judge, args, "first_hitting", args.length)
    rows = [{"how": "one token a full pass", **baseline}]
    for steps in STEPS:
        row = sample(blocks, judge, args, "ancestral", steps * args.length // BLOCK)
        rows.append({"how": f"blocks of {BLOCK} in {steps} steps", **row})
    return rows


def best(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The fastest row that is no worse than the first; None if all are worse."""
    baseline, *other_rows = rows
    good = [
        row
        for row in other_rows
        if row["bits_per_byte"] <= baseline["bits_per_byte"] + MARGIN
        and row["entropy"] >= baseline["entropy"] - MARGIN
    ]
    return max(good, key=lambda row: row["tokens_per_second"], default=None)


def main() -> None:
    args = parse()
    settle(args.threads)
    page = Page(args.output, args.json)
    page.say(machine_line() + ".")
    page.say(
        f"{args.samples} texts of {args.length} tokens, one at a time, "
        f"scale {args.scale}, {args.budget:,} tokens of training."
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, args.runs or Path(folder))
    page.note("rows", rows)
    columns = ("how", "tokens a second", "passes", "bits per byte of the judge", "entropy", "times as fast")
    page.say(
        as_markdown(
            columns,
            [
                [
                    row["how"],
                    f"{row['tokens_per_second']:.0f}",
                    f"{row['passes']:.0f}",
                    f"{row['bits_per_byte']:.3f}",
                    f"{row['entropy']:.2f}",
                    f"{row['tokens_per_second'] / rows[0]['tokens_per_second']:.2f}",
                ]
                for row in rows
            ],
        )
    )
    chosen = best(rows)
    if chosen is None:
        page.say("No way of writing in blocks is as good as one token a full pass.")
        return
    speedup = chosen["tokens_per_second"] / rows[0]["tokens_per_second"]
    page.note("speedup", speedup)
    page.say(
        f"The fastest that is as good, within {MARGIN} bits per byte and nats of entropy: {chosen['how']}, "
        f"{speedup:.2f} times."
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", default="nano")
    parser.add_argument("--budget", type=int, default=1_500_000, help="tokens of training of each model")
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="folder of the runs; a temporary one by default")
    add_outputs(parser)
    return read_arguments(parser)


if __name__ == "__main__":
    main()
