"""The columns of the results frame, which has a row for each run, failures included.

A column is a field of ``StudyColumns`` or ``RunColumns``, or a field of a section of result.json
(``SECTIONS``). Numbers are float64, NaN for a missing value. A missing value of another type is None.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from archbench.experiments.tracking.run_files import MatchedSize, ParameterCounts, RunSetup, TrainingSummary


@dataclass(frozen=True)
class Json:
    """A column of JSON text."""

    type: Any
    """Type of the value."""


class StudyColumns(BaseModel):
    """Columns that follow from the path of a run in its study."""

    study: str
    """Name of the study."""
    path: str
    """The run folder."""
    left_out: Annotated[str, Json(list[str])]
    """Folders of the study whose names are none of a run, and runs of others (``NAME of study=OTHER``)."""
    arm: str
    """The shortest name that tells the run configurations of a task apart."""
    studies_differ: Annotated[str, Json(list[str])]
    """The difference between studies, for a frame of multiple studies only."""


class RunColumns(BaseModel):
    """Columns that are read from a run folder, without those of ``SECTIONS``."""

    cell: str
    """BACKBONE-TASK-SCALE."""
    digest: str
    """Hash of the settings that the result depends on, without the seed."""
    seed: int
    status: str
    """``incomplete`` without a result.json; ``unreadable`` if a file of the run folder is damaged, or has the
    key of another run than its path."""
    message: str | None
    """Reason, of a run that did not complete."""
    backbone: str | None
    objective: str | None
    task: str | None
    scale: str | None
    score: float
    """The first metric on the test split. Every metric also has a column SPLIT_NAME, such as
    ``test_bits_per_byte``."""
    score_standard_error: float
    """Over clusters of items of the test split (documents), not over seeds."""
    score_items: float
    score_samples: float
    """Random draws for each item."""
    score_clusters: float
    score_setting: str | None
    """Description of the scored part of the split."""
    score_lossy_documents: float
    """Texts of the split that the tokenizer loses a part of."""
    metric: str | None
    """Name of the score."""
    unit: str | None
    direction: str | None
    averaging: str | None
    likelihood: str | None
    """Likelihood type."""
    estimator: str | None
    slices: Annotated[str | None, Json(list[dict[str, Any]])]
    """Contributions of slices of a text to the score."""
    documents: Annotated[str | None, Json(list[list[float]])]
    """Bits and bytes of each document of the test split of a text, or of groups of documents."""
    sample: Annotated[str | None, Json(dict[str, str])]
    """Prompt and text that the trained model generated from it."""
    further: Annotated[str, Json(dict[str, float | None])]
    """The score of each of ``trainer.extra_evaluations``."""
    validation: float
    """The first metric on the validation split, after training."""
    flops_per_token: float
    """Training FLOPs."""
    state_bytes_2k: float
    """Size of the decoding state of a sequence after 2048 tokens."""
    fingerprint: str | None
    """Hash of the data."""
    git_commit: str | None
    git_dirty: bool | None
    """True if a file was changed after the commit."""
    git_code: str | None
    """Hash of the code that the result depends on."""
    device_name: str | None
    device_processor: str | None
    device_threads: str | None
    device_precision: str | None
    device_instruction_set: str | None
    """That the C++ kernels are compiled for."""
    device_compiler: str | None
    """Of the C++ kernels."""
    device_pytorch_instruction_set: str | None
    device_library_settings: str | None
    """Variables of the environment that change how numerical libraries round."""
    command: str | None
    finished_at: str | None
    """When the result was written, UTC."""
    code: Annotated[str, Json(dict[str, str])]
    """Hash of each package and module of the code."""
    versions: Annotated[str, Json(dict[str, Any])]
    """Of Python and of packages."""
    kernels: Annotated[str, Json(dict[str, Any])]
    """Implementation of each operation that was chosen."""
    references: Annotated[str, Json(list[dict[str, Any]])]
    """Lines to read the score against, such as chance."""
    published: Annotated[str, Json(list[Any])]
    """Published results that the study quotes (``study.published``)."""
    rules: str | None
    """Version of the rules of tracks; None for runs of earlier versions."""
    protocol: str | None
    """``study.protocol``."""
    tuning_validation: float
    """``study.tuning``: the best setting of the search for the learning rate, on the validation split."""
    tuning_second_validation: float
    tuning_trials: float
    tuning_sensitivity: float
    baseline: str | None
    """``study.baseline``."""
    explains: str | None
    """``study.explains``."""
    against: str | None
    """``study.against``."""
    steps_to: str | None
    """Model with the final score that all models are timed to (``study.steps_to``)."""
    solved: float
    """The accuracy from which on a task counts as solved (``study.solved``)."""
    ladder: str | None
    """``study.ladder.name``."""
    difficulty: float
    """``study.ladder.difficulty``."""
    difficulty_unit: str | None
    """``study.ladder.unit``."""
    shared_seeds: bool
    """``study.shared_seeds``."""
    margin: float
    """``study.margin``."""
    decay_ends: Annotated[str, Json(list[float])]
    """Fractions of the steps at which the learning rate decayed."""
    changed: Annotated[str, Json(list[str])]
    """Changes of code, libraries and machine between restarts: if anything did, the result is not exact
    to the last bit."""
    corrupt_lines: int
    """Lines of metrics.jsonl that are no JSON object."""
    damaged: Annotated[str, Json(list[str])]
    """Files of the run folder that have changed since the run ended."""
    curve_hash: str | None
    """Of the losses and gradient norms of training, to find copies."""


@dataclass(frozen=True)
class Section:
    """A model whose fields are columns, such as a part of result.json."""

    model: type[BaseModel]
    prefix: str
    """Before the name of a field."""
    unprefixed: tuple[str, ...] = ()
    """Fields whose columns are named without the prefix."""

    @property
    def columns(self) -> dict[str, str]:
        """Return the column of each field."""
        fields = self.model.model_fields
        return {name: name if name in self.unprefixed else self.prefix + name for name in fields}


SECTIONS = {
    "parameters": Section(ParameterCounts, "parameters_"),
    "training": Section(TrainingSummary, "training_", ("loss_spikes", "skipped_steps")),
    "setup": Section(RunSetup, ""),
    "matched": Section(MatchedSize, "matched_"),
}
"""By the name of the field of ``RunResult``."""


@dataclass(frozen=True)
class Column:
    """A column of the frame: the field that it comes from."""

    model: type[BaseModel]
    field: str
    kind: Literal["number", "flag", "text"] | Json


@functools.cache
def columns() -> dict[str, Column]:
    """Return the columns by name, without those of each metric."""
    sections = [Section(StudyColumns, ""), Section(RunColumns, ""), *SECTIONS.values()]
    columns = {}
    for section in sections:
        hints = get_type_hints(section.model, include_extras=True)
        for field, name in section.columns.items():
            columns[name] = Column(section.model, field, _kind(hints[field]))
    return columns


def _kind(hint: Any) -> Literal["number", "flag", "text"] | Json:
    """Return what a column with values of a type holds."""
    if get_origin(hint) is Annotated:
        value, mark = get_args(hint)
        return mark if isinstance(mark, Json) else _kind(value)
    if get_origin(hint) is types.UnionType:
        return _kind(get_args(hint)[0])
    return "flag" if hint is bool else "text" if hint is str else "number"
