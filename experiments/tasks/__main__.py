"""Task check: prints what the oracle and shallow baselines reach on generated tasks. There is no training.

archbench tasks task=recall
archbench tasks -m 'task=glob(*)'

A score tells models apart where the oracle, which reads only what a model sees, reaches 1.000, and the
shallow baselines do not. Of languages, the bits of n-gram models above those of the exact probability are
printed. Tasks with examples from text or images are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import rich.console
import rich.table
from omegaconf import DictConfig, OmegaConf

from archbench.experiments.config.hydra_app import for_each_cell
from archbench.experiments.config.structured import component
from archbench.experiments.runtime.console import print_tables
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.tasks.probes.probe import Probe
from archbench.experiments.tasks.probes.shallow_baselines import shallow_scores
from archbench.experiments.tasks.task import EXCESS_BITS, Task

if TYPE_CHECKING:
    from archbench.experiments.tasks.metrics import Reference
    from archbench.experiments.tasks.probes.probe import Probe

ORACLE_EXAMPLES = 200
SOLVED = 0.95
"""Score from which a shallow baseline is marked: such a task does not tell models apart by itself."""


@dataclass(frozen=True, kw_only=True)
class TaskCheck:
    """Scores of the oracle and of the shallow baselines on one task."""

    task: str
    length: int
    """Tokens of an example."""
    answers: float
    """Mean number of answers of an example."""
    oracle: float
    """Fraction of the answers that the oracle gives; 1 unless the context does not determine every answer."""
    guess: float
    """The best score of ``Probe.guesses``."""
    scores: dict[str, float]
    """Scores of the shallow baselines, by name."""


def check_task(name: str, task: Probe) -> TaskCheck:
    """Measure the oracle and the shallow baselines on the test split."""
    batch = task.batch("test", 0, 0, ORACLE_EXAMPLES)
    right = total = 0
    columns = (batch.tokens_BT, batch.context_BT, batch.answer_BT, batch.valid_BT)
    for tokens, context, answer, valid in zip(*(column.tolist() for column in columns), strict=True):
        answer_positions = [position for position, is_answer in enumerate(answer) if is_answer]
        visible = context[: sum(valid)]  # padding is on the right
        guesses = task.solve(visible, answer_positions)
        right += sum(
            tokens[position] == token for position, token in zip(answer_positions, guesses, strict=True)
        )
        total += len(answer_positions)
    return TaskCheck(
        task=name,
        length=task.sequence_length,
        answers=total / ORACLE_EXAMPLES,
        oracle=right / total,
        guess=max((reference.value for reference in task.guesses()), default=0.0),
        scores=shallow_scores(task),
    )


def render(checks: Sequence[TaskCheck]) -> rich.table.Table:
    """Return a table with a row for each task, its best shallow baselines first."""
    table = rich.table.Table(title="Task check: oracle and shallow baselines", box=rich.box.SIMPLE)
    table.add_column("task", no_wrap=True)
    for name in ("tokens", "answers", "oracle", "best guess"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("the three best shallow baselines", overflow="fold")
    for check in checks:
        top_scores = sorted(check.scores.items(), key=lambda item: -item[1])[:3]
        table.add_row(
            check.task,
            str(check.length),
            f"{check.answers:.1f}",
            f"{check.oracle:.3f}",
            f"{check.guess:.3f}",
            ", ".join(f"{name} {score:.3f}{' (!)' if score >= SOLVED else ''}" for name, score in top_scores),
        )
    return table


def render_languages(references: Mapping[str, Sequence[Reference]]) -> rich.table.Table:
    """Return a table with the reference lines of each language, in bits per token above the exact ones."""
    table = rich.table.Table(title="Languages: excess bits of reference lines", box=rich.box.SIMPLE)
    for name in ("task", "line", "excess bits", "note"):
        table.add_column(name, justify="right" if name == "excess bits" else "left", overflow="fold")
    for task, lines in references.items():
        for line in lines:
            table.add_row(task, line.name, f"{line.value:.3f}", line.note)
    return table


@dataclass(frozen=True, kw_only=True)
class Found:
    """The tasks of a command line."""

    checks: list[TaskCheck] = field(default_factory=list)
    languages: dict[str, list[Reference]] = field(default_factory=dict)
    """Reference lines of languages whose probabilities are known, by the name of the task."""
    left_out: list[str] = field(default_factory=list)
    """Tasks with examples that are not generated."""


def main(arguments: Sequence[str]) -> None:
    """Run the command: check every task of the command line, print the table, fail where an oracle fails."""
    found = Found()
    for_each_cell(lambda cfg: _collect(cfg, found), arguments, "task_check")
    if not found.checks and not found.languages and not found.left_out:
        return  # only --help or --cfg was requested
    if not found.checks and not found.languages:
        sys.stderr.write("error: no generated task was chosen: take one such as task=recall\n")
        sys.exit(ConfigError.exit_code)
    if found.checks:
        print_tables(render(found.checks))
        print(f"(!) a shallow baseline reaches {SOLVED:.0%} or more.")
    if found.languages:
        print_tables(render_languages(found.languages))
    failed = [check.task for check in found.checks if check.oracle < 1]
    if failed:
        sys.stderr.write(f"error: the oracle does not reach 100% on {', '.join(failed)}\n")
        sys.exit(1)


def _collect(cfg: DictConfig, found: Found) -> None:
    """Check the task of one composed configuration."""
    task_class, config = component({"task": OmegaConf.to_container(cfg.task, resolve=True)}, "task", Task)  # type: ignore[type-abstract]
    if issubclass(task_class, Probe):
        found.checks.append(check_task(cfg.names.task, task_class(config)))  # type: ignore[call-arg]
    elif getattr(task_class, "metric", None) == EXCESS_BITS:
        found.languages[cfg.names.task] = task_class(config).references()  # type: ignore[call-arg]
    else:
        found.left_out.append(cfg.names.task)


if __name__ == "__main__":
    main(sys.argv[1:])
