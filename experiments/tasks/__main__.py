"""Prints what an oracle and shallow solvers reach on generated tasks. Trains nothing.

python -m experiments.tasks task=recall
python -m experiments.tasks -m 'task=glob(*)'

A score means something where the oracle, which reads only what a model is shown, reaches 1.000, and
the shallow solvers do not. Tasks that are read rather than made are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import rich.console
import rich.table
from omegaconf import DictConfig, OmegaConf

from experiments.config.hydra_app import start
from experiments.runtime.errors import ConfigError

if TYPE_CHECKING:
    from experiments.tasks.probes.probe import Probe

ORACLE_EXAMPLES = 200
SOLVED = 0.95
"""A shallow solver that reaches so much is marked: such a task does not tell models apart by itself."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What was found for one task."""

    task: str
    length: int
    answers: float
    """Answers of an example, a mean."""
    oracle: float
    """Share of the answers that the oracle gives; 1 unless the task asks for more than it shows."""
    guess: float
    """The best line of ``Probe.guesses``."""
    scores: dict[str, float]
    """Of the shallow solvers."""


def measure_gate(name: str, task: Probe) -> Gate:
    """Oracle and solvers on the test split."""
    from experiments.tasks.probes.shallow_baselines import shallow_scores

    batch = task.batch("test", 0, 0, ORACLE_EXAMPLES)
    right = total = 0
    columns = (batch.tokens_BT, batch.context_BT, batch.answer_BT, batch.valid_BT)
    for tokens, context, answer, valid in zip(*(column.tolist() for column in columns), strict=True):
        asked = [place for place, is_answer in enumerate(answer) if is_answer]
        shown = context[: sum(valid)]  # padding stands on the right
        found = task.solve(shown, asked)
        right += sum(tokens[place] == token for place, token in zip(asked, found, strict=True))
        total += len(asked)
    return Gate(
        task=name,
        length=task.sequence_length,
        answers=total / ORACLE_EXAMPLES,
        oracle=right / total,
        guess=max((reference.value for reference in task.guesses()), default=0.0),
        scores=shallow_scores(task),
    )


def render(gates: Sequence[Gate]) -> rich.table.Table:
    """A row for each task: its best shallow solvers first."""
    table = rich.table.Table(box=rich.box.SIMPLE)
    table.add_column("task", no_wrap=True)
    for name in ("tokens", "answers", "oracle", "best guess"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("the three best shallow solvers", overflow="fold")
    for gate in gates:
        best = sorted(gate.scores.items(), key=lambda item: -item[1])[:3]
        table.add_row(
            gate.task,
            str(gate.length),
            f"{gate.answers:.1f}",
            f"{gate.oracle:.3f}",
            f"{gate.guess:.3f}",
            ", ".join(f"{name} {score:.3f}{' (!)' if score >= SOLVED else ''}" for name, score in best),
        )
    return table


_gates: list[Gate] = []
_left_out: list[str] = []
"""Tasks that are read."""


def main() -> None:
    sys.argv.append("hydra/launcher=basic")  # one process: the rows are gathered here
    start(_collect)
    if not _gates and not _left_out:
        return  # --help or --cfg was all that was asked
    if not _gates:
        sys.stderr.write("error: no generated task was chosen: take one such as task=recall\n")
        sys.exit(ConfigError.exit_code)
    rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else 150).print(render(_gates))
    print(f"(!) a shallow solver reaches {SOLVED:.0%} or more.")
    failed = [gate.task for gate in _gates if gate.oracle < 1]
    if failed:
        sys.stderr.write(f"error: the oracle does not reach 100% on {', '.join(failed)}\n")
        sys.exit(1)


def _collect(cfg: DictConfig) -> None:
    from experiments.config.structured import component
    from experiments.tasks.probes.probe import Probe
    from experiments.tasks.task import Task

    # Only the task is read: whether the other parts go with it does not matter here.
    found, config = component({"task": OmegaConf.to_container(cfg.task, resolve=True)}, "task", Task)  # type: ignore[type-abstract]
    if issubclass(found, Probe):
        _gates.append(measure_gate(cfg.names.task, found(config)))  # type: ignore[call-arg]
    else:
        _left_out.append(cfg.names.task)


if __name__ == "__main__":
    main()
