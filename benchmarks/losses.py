"""Whether faster code still computes the same: the losses of a short training run of each family.

python benchmarks/losses.py --against benchmarks/results/losses_before.json

Each family trains on text at the nano scale, in float32 on a CPU, from seed 0, by the harness's own loss,
optimizer and schedule. The losses of its steps are written to a file (``--write``), or held against those of
one: of each family the largest difference is printed, and the command fails where one is above the limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from machine import as_markdown, machine_line, settle
from overhead import compose

from experiments.run.build import build_model
from experiments.run.plan import plan
from experiments.training.loss import Loss
from experiments.training.lr_schedule import set_learning_rate

FAMILIES = (
    "decoder",
    "encoder",
    "encoder_decoder",
    "s4",
    "mamba",
    "mamba2",
    "moe",
    "masked_diffusion",
    "hybrid",
)
BATCH, LENGTH, STEPS = 8, 128, 50
LIMIT = 1e-5
"""Losses that differ by more than this are not the same."""


def train(family: str, steps: int) -> list[float]:
    """The losses of the first steps of a run of ``STEPS``, whose schedule they follow."""
    settings = compose(
        f"backbone={family}",
        f"task.sequence_length={LENGTH}",
        f"budget.batch_size={BATCH}",
        f"budget.tokens={STEPS * BATCH * LENGTH}",
        "device=cpu",
    )
    planned = plan(settings)
    model = build_model(settings, planned)
    optimizer = settings.optimizer.build(model)
    loss_of = Loss(model, planned.objective, settings.device.precision)
    found = []
    for step in range(steps):
        batch = planned.task.batch("train", settings.seed, step * BATCH, BATCH)
        view = planned.objective.with_scored_positions(
            planned.objective.view(batch, torch.Generator().manual_seed(step))
        )
        set_learning_rate(optimizer, step, STEPS, settings.optimizer)
        loss = loss_of(view, view.count_B.sum(), BATCH)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.append(loss.item())
    return found


def difference(found: list[float], before: list[float]) -> float:
    """The largest difference of two losses of the same step."""
    return max(abs(one - other) for one, other in zip(found, before, strict=True))


def main() -> None:
    args = parse()
    settle(args.threads)
    print(machine_line(), flush=True)
    found = {}
    for family in args.families:
        found[family] = train(family, args.steps)
        print(f"{family}: loss {found[family][0]:.6f} to {found[family][-1]:.6f}", flush=True)
    if args.write is not None:
        args.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.against is None:
        return
    before = json.loads(args.against.read_text(encoding="utf-8"))
    most = {family: difference(losses, before[family][: args.steps]) for family, losses in found.items()}
    print(as_markdown(("family", "largest difference"), [[f, f"{d:.1e}"] for f, d in most.items()]))
    if worst := [family for family, found in most.items() if not found <= LIMIT]:
        sys.exit(f"losses differ by more than {LIMIT:g}: {', '.join(worst)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--steps", type=int, default=STEPS, help="the first of them only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", type=Path, help="JSON file to write the losses to")
    parser.add_argument("--against", type=Path, help="JSON file of losses to compare with")
    args = parser.parse_args()
    if not 1 <= args.steps <= STEPS:
        parser.error(f"--steps {args.steps}: from 1 to {STEPS}")
    if args.write is not None and not args.write.parent.is_dir():
        parser.error(f"--write {args.write}: there is no folder {args.write.parent}; make it first")
    if args.against is not None and not args.against.is_file():
        parser.error(f"--against {args.against}: there is no such file; make it with --write")
    return args


if __name__ == "__main__":
    main()
