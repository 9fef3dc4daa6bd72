"""Content of the JSON files of a run folder: result.json, provenance.json, and the rows of metrics.jsonl.

A run writes its files through these models, and readers read them through these models. Other keys of a file
are ignored. The columns of the results frame (``experiments.tracking.frame_columns``) follow from the
fields.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError
from pydantic_core import from_json

from archbench.experiments.runtime.atomic_io import plain
from archbench.experiments.runtime.errors import CheckpointError, RunError
from archbench.experiments.runtime.json_state import RESTORE, Number, parse_json, parse_model, read_text
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.tasks.metrics import Metric, Reference

TOKENIZER = "tokenizer.json"
HASHED = ("config.yaml", "provenance.json", "metrics.jsonl", TOKENIZER)
"""Files with a hash in result.json; only a run that trained a tokenizer has a tokenizer file."""

CHECKPOINT = "checkpoints/step-{step:08d}/MANIFEST.json"
"""File with the hashes of a checkpoint. That of the last one has a hash in result.json."""

FETCHED = "wandb-fetched.json"
"""File of a run that was copied back from W&B, which has no checkpoints."""


class Record(BaseModel):
    """Base class of what a run folder stores. Fields that were never set are not written."""

    model_config = ConfigDict(defer_build=True)  # help and mistakes do not wait for it

    def tree(self) -> dict[str, Any]:
        """Return the record as values that JSON can hold after ``experiments.runtime.atomic_io.plain``."""
        return self.model_dump(exclude_unset=True)


class ParameterCounts(Record):
    """Parameters of a model by part; shared tensors are counted once."""

    embedding: int
    body: int
    """All but embedding and LM head."""
    head: int
    total: int
    active: int
    """Those that a token uses: all, but for experts that it is not sent to."""


class MatchedSize(Record):
    """The size that is equal for the models of a study."""

    axis: str
    """The quantity with equal values for all models: ``scale.axis``."""
    target: int | None
    """The requested size; None if all widths are given."""
    value: int
    """The size reached."""
    residual: Number
    """The mismatch, relative to the target; 0 without a target."""
    note: str | None
    """Note on a mixture of experts that is compared by the parameters of all its experts."""


class RunSetup(Record):
    """Shape of a model, and settings of its training; None for what a backbone does not have."""

    d_model: int | None
    num_layers: int | None
    """Of encoder and decoder together."""
    num_heads: int | None
    d_state: int | None
    batch_size: int
    sequence_length: int
    learning_rate: Number
    """At its peak."""


class PlannedTraining(Record):
    """The whole training."""

    steps: int
    tokens: int
    flops: Number


class PlannedCost(Record):
    """Cost of a run, known before it is trained."""

    parameters: ParameterCounts
    flops_per_token: Number
    """Training FLOPs."""
    state_bytes_2k: int
    """Size of the decoding state of a sequence after 2048 tokens."""
    matched: MatchedSize
    setup: RunSetup
    widths: dict[str, Any]
    """Configuration of the backbone, with every width resolved."""
    planned: PlannedTraining


class TrainingSummary(Record):
    """Cost of training, over all sessions of the run."""

    steps: int
    tokens: int
    flops: Number
    epochs: Number | None
    """Passes over the training examples; None if they are generated."""
    seconds: Number
    """Time in training steps; evaluation and saving are not counted."""
    device_seconds: Number
    """The same, summed over all processes."""
    tokens_per_second: Number | None
    compile_seconds: Number
    """Time that ``torch.compile`` took in training steps; not part of ``seconds``."""
    data_share: Number | None
    """Fraction of ``seconds`` spent on batches."""
    peak_memory_bytes: int
    micro_batch_size: int
    skipped_steps: int
    """Steps that were skipped because loss or gradient was not finite."""
    loss_spikes: int
    """Jumps of the training loss."""


class TrainingSet(Record):
    """The finite training set of a generated task."""

    examples: int
    overlap: dict[str, Number | None]
    """Fraction of each held-out split that is in the set too; None where it is too large to compare."""


class InitialModel(Record):
    """The model that training began with (``init_from``)."""

    path: str
    fingerprint: str


class ParentRun(InitialModel):
    """parent.json: the checkpoint that a run continues from (``continue_from``)."""

    step: int


class Resume(Record):
    """Changes of code, data and machine between the sessions of a run."""

    sittings: int
    """Sessions, this one included."""
    exact: bool
    """True if the result is, to the last bit on a CPU, that of a run without interruption."""
    changed: dict[str, list[str | int | None]]
    """Changes since the first session, by dotted key: the value before, and the value now."""
    fallbacks: list[str] = []
    """Damaged checkpoints in whose place an older one was resumed, each with its reason."""


class FileRecord(Record):
    """Length and hash of another file of the run folder."""

    bytes: int
    sha256: str


class Sample(Record):
    """A text that a trained model generated."""

    prompt: str
    """The beginning of the validation split."""
    text: str
    """Its greedy continuation."""


class RunResult(Record):
    """result.json. A run that was rejected has no plan, and one that failed early no training."""

    format: Literal[1]
    key: str
    """CELL-DIGEST-sSEED."""
    study: str
    cell: str
    """BACKBONE-TASK-SCALE."""
    digest: str
    """Hash of the settings that decide the result, the seed left out."""
    seed: NonNegativeInt
    backbone: str
    objective: str
    task: str
    scale: str
    rules: str | None = None
    """Version of the rules of tracks that the code implements; None in results of earlier versions."""
    parameters: ParameterCounts | None = None
    flops_per_token: Number | None = None
    """Training FLOPs."""
    state_bytes_2k: int | None = None
    """Size of the decoding state of a sequence after 2048 tokens."""
    matched: MatchedSize | None = None
    setup: RunSetup | None = None
    widths: dict[str, Any] | None = None
    """Configuration of the backbone, with every width resolved."""
    planned: PlannedTraining | None = None
    fingerprint: str | None = None
    """Hash of the data."""
    training_set: TrainingSet | None = None
    data_note: str | None = None
    """Note of the task on its data."""
    initial: InitialModel | None = None
    parent: ParentRun | None = None
    resume: Resume | None = None
    validation: list[Metric] = []
    """On the validation split, after training."""
    references: list[Reference] = []
    sample: Sample | None = None
    status: RunStatus = RunStatus.INCOMPLETE
    exit_code: int | None = None
    """Exit code of a run that was rejected."""
    message: str | None = None
    """Reason, of a run that did not complete."""
    words: list[str] = []
    """Command-line overrides of a run that was rejected."""
    training: TrainingSummary | None = None
    metrics: list[Metric] = []
    """On the test split, the task's own first; then those of ``trainer.extra_evaluations``."""
    finished_at: str | None = None
    """When the result was written, UTC."""
    files: dict[str, FileRecord] = {}
    """The files of ``HASHED`` that the run has, and the ``CHECKPOINT`` that it ended with."""
    checksum: str = ""
    """Hash of everything else."""

    @property
    def test_metrics(self) -> list[Metric]:
        """Return the metrics on the test split, the score first."""
        return [metric for metric in self.metrics if metric.split == "test"]

    @property
    def lost_steps(self) -> int:
        """Return how many planned steps a result that says ``complete`` does not have."""
        if self.status != RunStatus.COMPLETE or self.planned is None or self.training is None:
            return 0
        return max(0, self.planned.steps - self.training.steps)

    @property
    def saved_step(self) -> int | None:
        """Return the step of the checkpoint saved at the end; None where the run may have saved none."""
        saved = self.status in (RunStatus.COMPLETE, RunStatus.PREEMPTED)
        return self.training.steps if saved and self.training is not None else None


class DataSource(Record):
    """The data of a run."""

    task: str
    fingerprint: str | None


class DeviceUsed(Record):
    """The device of a run."""

    name: str
    """Type of the device, as PyTorch names it."""
    processor: str
    threads: int
    """Threads of the CPU."""
    precision: str
    instruction_set: str | None = None
    """That the C++ kernels are compiled for; None where they are not used."""
    compiler: str | None = None
    """Of the C++ kernels."""
    pytorch_instruction_set: str | None = None
    """That PyTorch selected; None on a GPU."""
    library_settings: str | None = None
    """Variables of the environment that change how numerical libraries round; None in earlier records."""


class GitState(Record):
    """Commit of the code, and whether anything was changed since; None where git does not have the code."""

    commit: str | None
    dirty: bool | None
    code: str
    """Hash of the code that the result depends on."""


class Provenance(Record):
    """provenance.json."""

    key: str
    """CELL-DIGEST-sSEED."""
    git: GitState
    code: dict[str, str]
    """Hash of each package and module of the code."""
    versions: dict[str, str]
    """Of Python and of packages."""
    data: DataSource
    device: DeviceUsed
    kernels: dict[str, str]
    """Implementation of each operation that was chosen."""
    command: str
    """The command, which may train several runs."""
    overrides: list[str] = Field(default_factory=list)
    """The overrides of this run; empty in records of earlier versions."""
    resume: Resume


class MetricRow(Record):
    """A row of metrics.jsonl: progress of training, and values measured there by name.

    A row of kind ``validation`` has the metrics on the validation split and the standard error of the first.
    One of kind ``routing`` has ``experiments.training.routing_probe.STATISTICS`` of each layer,
    as LAYER/NAME.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | list[Number]]

    kind: Literal["train", "validation", "routing"]
    step: int
    tokens: int
    flops: Number
    seconds: Number
    """Time in training steps."""
    device_seconds: Number
    """The same, summed over all processes."""

    @property
    def measured(self) -> dict[str, Any]:
        """Return the measured values by name."""
        return {name: value for name, value in self.tree().items() if name not in AXES and name != "kind"}


AXES = tuple(name for name in MetricRow.model_fields if name != "kind")
"""Fields with the progress of training."""


class TrainRow(MetricRow):
    """A row of kind ``train``: means over the steps since the row before."""

    kind: Literal["train"]
    loss: Number
    learning_rate: Number
    """Of the last step."""
    grad_norm: Number
    """Of the last step, before clipping."""
    tokens_per_second: Number
    data_share: Number
    """Fraction of the time spent on batches."""


class EvaluationRow(MetricRow):
    """A row of kind ``validation`` or ``routing``."""

    kind: Literal["validation", "routing"]


@functools.cache
def _row_adapter() -> TypeAdapter[TrainRow | EvaluationRow]:
    return TypeAdapter(TrainRow | EvaluationRow)


def parse_rows(lines: Iterable[str]) -> Iterator[tuple[str, TrainRow | EvaluationRow]]:
    """Yield lines of metrics.jsonl with their rows. A damaged line is left out: a killed run ends in one."""
    for line in lines:
        try:
            row = _row_adapter().validate_json(line, strict=True)
        except ValidationError:
            continue
        yield line, row


def read_result(
    path: Path, remedy: str = RESTORE, error: type[RunError] = CheckpointError
) -> RunResult | None:
    """Return a result.json, or None if it does not exist.

    Raises:
        RunError: of class ``error``: the file is damaged, of another version, or has changed since it was
            written. The message ends with ``remedy``.
    """
    text = read_text(path, remedy, error)
    return None if text is None else parse_result(text, path, remedy, error)


def parse_result(text: str, path: Path, remedy: str, error: type[RunError]) -> RunResult:
    """Return the text of a result.json as a result. Raises as ``read_result`` does."""
    try:
        tree = from_json(text)
    except ValueError:
        tree = None
    if not isinstance(tree, dict):  # parse_json takes three times as long, and reports what is wrong
        tree = parse_json(text, dict[str, Any], str(path), remedy, error)
    if tree.get("format", 1) != 1:
        raise error(f"{path} is not a record of format 1: it comes from another version of archbench")
    result = parse_model(text, RunResult, str(path), remedy, error)
    if not is_intact(tree):
        raise error(f"{path}: has changed since it was written: {remedy}")
    return result


def file_record(content: bytes) -> FileRecord:
    """Return length and hash of a file's content."""
    return FileRecord(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def checksum(tree: Mapping[str, Any]) -> str:
    """Return the hash of everything else in a record, 16 hexadecimal digits."""
    rest = {key: value for key, value in tree.items() if key != "checksum"}
    try:
        text = json.dumps(rest, sort_keys=True, allow_nan=False)
    except ValueError:  # NaN or an infinity, which is rare, and ``plain`` takes a third of the time of a load
        text = json.dumps(plain(rest), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_intact(tree: Mapping[str, Any]) -> bool:
    """Return False if a record has changed since it was written."""
    return bool(tree.get("checksum") == checksum(tree))


def damaged_files(result: RunResult, contents: Mapping[str, bytes | None]) -> list[str]:
    """Return the names of the files that have changed since the run ended.

    Args:
        result: result of the run.
        contents: content of each of ``HASHED`` by name; None for a missing file. A tokenizer may be missing
            if it is not needed, as in a run that was fetched from W&B without its weights.
    """
    return [
        name
        for name, expected in result.files.items()
        if name in contents
        and not (name == TOKENIZER and contents[name] is None)
        and file_record(contents[name] or b"") != expected  # a run without rows has no metrics.jsonl
    ]
