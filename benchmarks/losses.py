"""Compares the losses of a short training run of each family, to test that faster code computes the same.

python benchmarks/losses.py --against benchmarks/results/losses_before.json

Each family trains on text at the nano scale, in float32 on a CPU, from seed 0, by the harness's loss,
optimizer and schedule. The losses of its steps are written to a file (``--write``), or compared with those of
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

from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import build_model
from archbench.experiments.training.loss import Loss
from archbench.experiments.training.optimizer_step import set_learning_rate

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
    """The losses of the first steps of a run with the schedule of ``STEPS`` steps."""
    settings = compose(
        f"backbone={family}",
        f"task.sequence_length={LENGTH}",
        f"budget.batch_size={BATCH}",
        f"budget.tokens={STEPS * BATCH * LENGTH}",
        "device=cpu",
    )
    run_plan = plan(settings)
    model = build_model(settings, run_plan)
    optimizer = settings.optimizer.build(model)
    loss_of = Loss(model, run_plan.objective, settings.device.precision)
    losses = []
    for step in range(steps):
        batch = run_plan.task.batch("train", settings.seed, step * BATCH, BATCH)
        view = run_plan.objective.with_scored_positions(
            run_plan.objective.view(batch, torch.Generator().manual_seed(step))
        )
        set_learning_rate(optimizer, step, STEPS, settings.optimizer)
        loss = loss_of(view, view.count_B.sum(), BATCH)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def difference(losses: list[float], previous: list[float]) -> float:
    """The largest difference of two losses of the same step."""
    return max(abs(one - previous_loss) for one, previous_loss in zip(losses, previous, strict=True))


def main() -> None:
    args = parse()
    settle(args.threads)
    print(machine_line(), flush=True)
    losses_of = {}
    for family in args.families:
        losses_of[family] = train(family, args.steps)
        print(f"{family}: loss {losses_of[family][0]:.6f} to {losses_of[family][-1]:.6f}", flush=True)
    if args.write is not None:
        args.write.write_text(json.dumps(losses_of, indent=1) + "\n", encoding="utf-8")
    if args.against is None:
        return
    previous = json.loads(args.against.read_text(encoding="utf-8"))
    largest = {
        family: difference(losses, previous[family][: args.steps]) for family, losses in losses_of.items()
    }
    print(as_markdown(("family", "largest difference"), [[f, f"{d:.1e}"] for f, d in largest.items()]))
    if worst := [family for family, losses_of in largest.items() if not losses_of <= LIMIT]:
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
