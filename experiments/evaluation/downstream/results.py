"""The rows and the table of ``experiments.evaluation.downstream``."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rich.box
import rich.console
import rich.table

from archbench.experiments.evaluation.downstream.answer_likelihood import AnswerScorer
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.run.load_model import LoadedModel
from archbench.experiments.runtime.atomic_io import plain
from archbench.experiments.runtime.console import plus_minus, print_tables
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.tasks.metrics import jackknife

if TYPE_CHECKING:
    from archbench.experiments.evaluation.downstream.lm_eval_model import Key, Note

UNITS = {"acc": "share", "acc_norm": "share", "exact_match": "share", "bits_per_byte": "bits/byte"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A metric of a task, with all that is needed to read it."""

    task: str
    metric: str
    filter: str
    """The harness's filter that extracts answers from generated text; ``none`` where the task names none."""
    value: float
    standard_error: float | None
    """Over the examples, not over seeds. None where there are fewer than 2."""
    items: int
    unit: str
    direction: str
    likelihood: str | None
    """``exact``, ``bound`` or ``pseudo``; None where texts are generated."""
    estimator: str
    samples: int
    """Random draws for each answer; 1 if the likelihood is deterministic."""
    nats_error: float | None
    """Uncertainty that these draws leave: the root mean square, over all answers, of the standard error of an
    answer's nats. None if the likelihood is deterministic."""
    shots: int
    shots_from: str | None
    """The split that solved examples are of."""
    truncated: int
    """Prompts that were cut from the left, of ``requests``."""
    requests: int
    seed: int
    task_version: str
    harness: str
    """The version of the lm-evaluation-harness."""
    lossy: int
    """Complete texts that the tokenizer does not restore, of ``requests``: their bits per byte are not
    comparable with those of other tokenizers."""
    prompts: str
    """Hash of all that the model was given: prompts, continuations, settings of writing."""
    model: str


def task_rows(
    results: Mapping[str, Any],
    tasks: Mapping[str, Any],
    notes: Mapping[Key, Note],
    saved: LoadedModel,
    scorer: AnswerScorer,
    seed: int,
) -> list[Row]:
    """A row for each metric and filter of each task.

    Args:
        results: of the harness.
        tasks: its tasks by name.
        notes: of the model about each request.
    """
    rows = []
    for name, task in tasks.items():
        examples, kind = results["samples"][name], task.OUTPUT_TYPE
        written, shots = kind == "generate_until", results["n-shot"][name]
        request_notes = _notes(examples, notes, kind)
        given = [example["arguments"] for example in examples]
        likelihood = scorer.likelihood
        drawn = not written and likelihood.kind == "bound"
        for key, value in results["results"][name].items():
            metric, _, kept_by = key.partition(",")
            if not kept_by or metric.endswith("_stderr"):
                continue
            items = [example[metric] for example in examples if example["filter"] == kept_by]
            higher = results["higher_is_better"][name].get(metric)
            rows.append(
                Row(
                    task=name,
                    metric=metric,
                    filter=kept_by,
                    value=float(value),
                    standard_error=_error(items, task.aggregation().get(metric)),
                    items=len(items),
                    unit=UNITS.get(metric, ""),
                    direction="" if higher is None else "higher" if higher else "lower",
                    likelihood=None if written else likelihood.kind,
                    estimator=generation_description(saved) if written else likelihood.estimator,
                    samples=likelihood.samples if drawn else 1,
                    nats_error=math.sqrt(np.mean([note.variance for note in request_notes]))
                    if drawn
                    else None,
                    shots=shots,
                    shots_from=shots_split(task) if shots else None,
                    truncated=sum(note.truncated for note in request_notes),
                    requests=len(request_notes),
                    seed=seed,
                    task_version=str(results["versions"].get(name)),
                    harness=metadata.version("lm_eval"),
                    lossy=sum(note.lossy for note in request_notes),
                    prompts=hashlib.sha256(json.dumps(given, default=str).encode()).hexdigest()[:16],
                    model=saved.description,
                )
            )
    return rows


def _notes(examples: Sequence[Mapping[str, Any]], notes: Mapping[Key, Note], kind: str) -> list[Note]:
    """Return the notes about a task's requests."""
    method = "loglikelihood" if kind == "multiple_choice" else kind
    first_filter = [example for example in examples if example["filter"] == examples[0]["filter"]]
    request_arguments = [arguments for example in first_filter for arguments in example["arguments"]]
    return [
        notes[method, *(text for text in arguments if isinstance(text, str))]
        for arguments in request_arguments
    ]


def _error(items: Sequence[Any], aggregate: Any) -> float | None:
    """Standard error of an aggregated metric: the jackknife's, which of a mean is the usual one."""
    from lm_eval.api.metrics import mean, mean_stderr

    if len(items) < 2 or aggregate is None:
        return None
    if aggregate is mean:
        return float(mean_stderr(items))
    return jackknife(lambda kept: float(aggregate([items[i] for i in kept])), len(items))


def shots_split(task: Any) -> str:
    """The split that a task's solved examples are of, by the harness's rule."""
    c = task.config
    if c.fewshot_config.split is not None:
        return str(c.fewshot_config.split)
    if c.fewshot_config.samples is not None:
        return "the task's file"
    return str(c.training_split or c.validation_split or c.test_split)


def check_shots(name: str, task: Any) -> None:
    """Raise DataError if solved examples are too few, or may contain the question."""
    c = task.config
    if not c.num_fewshot:
        return
    source, evaluated = shots_split(task), c.test_split or c.validation_split
    left_out = c.fewshot_config.split is not None and c.fewshot_config.split == c.test_split
    if source == evaluated and not left_out:
        raise DataError(
            f"tasks: {name} takes its solved examples from its {evaluated} split, which it is evaluated on, "
            "and may show a question with its answer: name fewshot_split in its file, or set shots=0"
        )
    available = len(list(task.fewshot_docs())) - left_out
    if c.num_fewshot > available:
        raise DataError(
            f"tasks: {name} has only {available} solved examples ({source}): set shots={available} or less"
        )


def generation_description(saved: LoadedModel) -> str:
    """Describe how texts are generated."""
    objective = saved.objective
    if not isinstance(objective, UnmaskingObjective):
        return "written from left to right"
    return f"filled in by {objective.unmasking.description}, {objective.steps} steps"


def print_table(rows: Sequence[Row]) -> None:
    """The table, in the order of the tasks; values common to all rows are below."""
    print_tables(table(rows), keys=2)
    for line in below(rows):
        print(line)


def table(rows: Sequence[Row]) -> rich.table.Table:
    grid = rich.table.Table(box=rich.box.SIMPLE)
    grid.add_column("task", overflow="fold")
    grid.add_column("metric", overflow="fold")
    for name in ("value", "n", "class", "nats ±", "shots", "cut", "version"):
        grid.add_column(name, justify="left" if name == "class" else "right", no_wrap=True)
    grid.add_column("prompts", no_wrap=True)
    for row in rows:
        arrow = {"higher": " ↑", "lower": " ↓", "": ""}[row.direction]
        grid.add_row(
            row.task,
            row.metric + ("" if row.filter == "none" else f" ({row.filter})") + arrow,
            f"{row.value:.4f}{plus_minus(row.standard_error)}",
            str(row.items),
            row.likelihood or "-",
            "" if row.nats_error is None else f"{row.nats_error:.3f}",
            f"{row.shots}" + (f" ({row.shots_from})" if row.shots_from else ""),
            f"{row.truncated}/{row.requests}",
            row.task_version,
            row.prompts[:8],
        )
    return grid


def below(rows: Sequence[Row]) -> list[str]:
    """Return the lines below the table: its columns explained, and how likelihoods and texts came about."""
    hows = dict.fromkeys(
        f"{row.likelihood or 'texts'}: {row.estimator}"
        + ("" if row.samples == 1 else f", {row.samples} draws for each answer, which leave nats ± uncertain")
        for row in rows
    )
    lines = [*hows, "±: standard error over examples, not over seeds; cut: prompts cut from the left"]
    lossy = {row.task: f"{row.lossy} of {row.requests} texts of {row.task}" for row in rows if row.lossy}
    if lossy:
        lines.append(
            f"the tokenizer does not give back {', '.join(lossy.values())}: bits per byte are not comparable "
            "with those of other tokenizers"
        )
    return [*lines, f"lm-evaluation-harness {rows[0].harness}, seed {rows[0].seed}"]


def append(rows: Sequence[Row], path: Path) -> None:
    """Adds a line for each row to a JSON-lines file. Raises ConfigError where it cannot be written."""
    lines = [json.dumps(plain(asdict(row)), allow_nan=False) + "\n" for row in rows]
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))
    except OSError as error:
        raise ConfigError(f"output={path}: cannot be written: {error}") from error
