"""Text tasks of archbench as tasks of the lm-evaluation-harness, with solved examples in the prompt."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from archbench.experiments.data.counter_rng import permute
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.task import Task
from archbench.experiments.tasks.text.sequence_classification import Sentences
from archbench.experiments.tasks.text.text_pairs import Pairs

MADE = 256
"""Pairs taken of each split where they never run out."""
VERSION = "1"
"""Of the prompts below."""


def local_task(name: str, task: Task, seed: int) -> Mapping[str, object]:
    """The harness's description of a task: its test split, and its training split to show solved examples of.

    Raises:
        ConfigError: the task is neither texts with classes nor pairs of texts.
    """
    question: dict[str, object]
    if isinstance(task, Sentences):
        rows = {split: _labelled_texts(task, split) for split in ("train", "test")}
        question = {
            "output_type": "multiple_choice",
            "doc_to_text": "{{texts | join('\n')}}\nclass:",
            "doc_to_choice": list(task.classes),
            "doc_to_target": "{{label}}",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        }
    elif isinstance(task, Pairs):
        counts = {split: task.num_examples(split) or MADE for split in ("train", "test")}
        rows = {
            split: [pair._asdict() for pair in task.pairs(split, seed, 0, n)] for split, n in counts.items()
        }
        question = {
            "output_type": "generate_until",
            "doc_to_text": "source: {{source}}\ntarget:",
            "doc_to_target": "{{target}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": task.config.max_target + 1},
            "filter_list": [
                {"name": "none", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}
            ],
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        }
    else:
        raise ConfigError(
            f"task={name}: solved examples are possible for texts with classes (sentences) and pairs of "
            "texts (pairs); use archbench evaluate for other tasks"
        )
    from datasets import Dataset, DatasetDict  # slow to import

    data = DatasetDict({split: Dataset.from_list(split_rows) for split, split_rows in rows.items()})
    return {
        "task": name,
        "custom_dataset": lambda **_: data,
        "test_split": "test",
        "fewshot_split": "train",
        "metadata": {"version": VERSION},
        **question,
    }


def _labelled_texts(task: Sentences, split: str) -> list[dict[str, object]]:
    """The rows in the order of evaluation: files are often sorted by class, and a limit selects the first."""
    parsed = task.parsed[split]
    order = permute(stream(split, "order"), np.arange(len(parsed)), len(parsed))
    chosen = [parsed[index] for index in order.tolist()]
    return [
        {"texts": list(row.texts), "label": task.class_number(row.target, row.location)} for row in chosen
    ]
