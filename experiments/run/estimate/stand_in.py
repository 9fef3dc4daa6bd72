"""A text that stands in for one that is not prepared yet, so that its run can be planned before."""

from __future__ import annotations

import dataclasses
from typing import Any

from archbench.experiments.data.token_file import planned_folder
from archbench.experiments.run.settings import Settings
from archbench.experiments.tasks.text.text import TextConfig

NO_HUB: dict[str, Any] = {
    "source": "embedded",
    "dataset": None,
    "dataset_config": None,
    "revision": None,
    "streaming": False,
    "max_documents": None,
}
"""Settings of a text that ships with Python."""


def with_stand_in(settings: Settings) -> tuple[Settings, bool]:
    """Return settings that can be planned without a network, and True where another text stands in.

    Cost and size depend on lengths and on the number of symbols, not on the text itself: a dataset of the
    hub that is not prepared is replaced by the embedded text. Nothing else is.
    """
    task = settings.task
    if not isinstance(task, TextConfig) or task.source != "hub":
        return settings, False
    folder, _ = planned_folder(task, task.tokenizer, task.num_sentinels, task.cache_dir)
    if folder.is_dir():
        return settings, False
    others = {
        name: dataclasses.replace(other, **NO_HUB) for name, other in settings.extra_evaluations.items()
    }
    return dataclasses.replace(
        settings, task=dataclasses.replace(task, **NO_HUB), extra_evaluations=others
    ), True
