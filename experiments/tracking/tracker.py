"""Mirror a run to Weights & Biases or TensorBoard, and what is mirrored of a run folder.

``metrics.jsonl`` and ``result.json`` in the run folder are authoritative. The mirror is a view of them and
may be lost without harm, so a tracker never fails a run: the first error prints one warning on stderr, and
then the tracker is off.

A resumed run passes its stored rows to its tracker again. A sink that starts from the beginning (files)
writes all of them, one that resumes (a server) skips as many as it has. So every step is mirrored once,
however often a run was stopped.

Environment variables are not mirrored, and ``redact`` removes what looks like a secret from everything else.
``docs/how-to/tracking.md`` lists the names.
"""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from archbench.experiments.config.schema import SINKS, TAG_KINDS, TrackingConfig
from archbench.experiments.config.structured import load_class
from archbench.experiments.runtime.atomic_io import plain
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.yaml_state import parse_yaml
from archbench.experiments.tracking.run_files import AXES, MetricRow, Provenance, RunResult

FILES = ("config.yaml", "provenance.json", "metrics.jsonl", "result.json")
"""Small files of a run folder: all that the analysis reads of a run without experts."""
COSTS = (
    "flops", "tokens", "seconds", "device_seconds", "tokens_per_second", "peak_memory_bytes", "epochs",
    "skipped_steps", "loss_spikes",
)  # fmt: skip
"""Keys of ``training`` in result.json with the cost and the events of a run."""
KNOWN_BEFORE = (
    "key", "study", "cell", "digest", "seed", "backbone", "objective", "task", "scale", "initial",
    "parameters", "flops_per_token", "state_bytes_2k", "matched", "setup", "widths", "planned", "fingerprint",
)  # fmt: skip
"""Fields of result.json that are known before training."""
JOB_TYPES = ("train", "eval", "bench", "analysis")
SPEC = 1
"""Version of the names in the mirror."""
MOST_ROWS = 10_000
"""Maximum number of mirrored rows of training; ``metrics.jsonl`` has all."""
MOST_NAMES = 300
"""Maximum number of different metrics, as W&B slows down with many."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Identity of a run: the names by which it is identified and grouped."""

    key: str
    """The run's key, for example ``mamba-recall-nano-ab12cd34-s0``; the W&B run id."""
    study: str
    group: str
    """The key without its seed: runs that differ only in the seed are one group."""
    tags: dict[str, str]
    """Value of each of ``TAG_KINDS`` except ``status``."""
    job_type: str = "train"
    """One of ``JOB_TYPES``."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]{1,64}", self.key):
            raise ValueError(
                f"key={self.key!r} cannot be a run id: use 1 to 64 letters, digits, '-', '_' or '.'"
            )
        if self.job_type not in JOB_TYPES or not set(self.tags) < set(TAG_KINDS):
            raise ValueError(f"job_type={self.job_type!r}, tags={sorted(self.tags)}: not of the closed lists")

    @staticmethod
    def of(result: RunResult) -> RunIdentity:
        """Return the identity of a run from its result, or from its plan before training."""
        return RunIdentity(
            key=result.key,
            study=result.study,
            group=result.key.removesuffix(f"-s{result.seed}"),
            tags={
                "arch": result.backbone,
                "objective": result.objective,
                "task": result.task,
                "size": result.scale,
                "stage": "pretraining" if result.initial is None else "fine_tuning",
            },
        )


class Sink(ABC):
    """A destination that a run is mirrored to. It may raise any exception, which ``Tracker`` handles."""

    name: str
    """Name used in warnings."""
    stored_rows: int = 0
    """Rows of this run that it has already, if it resumes a run."""

    @abstractmethod
    def __init__(
        self, config: TrackingConfig, run: RunIdentity, folder: Path, contents: dict[str, object]
    ) -> None:
        """Start mirroring a run, with ``contents`` as its configuration."""

    @abstractmethod
    def log(self, step: int, seconds: float, names: dict[str, object]) -> None:
        """Mirror one row; ``seconds`` is the training time up to it."""

    @abstractmethod
    def close(self, result: RunResult | None, exit_code: int) -> None:
        """Mirror the result (None if it is missing), without secrets, and end the run with its exit code."""

    @staticmethod  # noqa: B027
    def abandon(error: Exception) -> None:
        """Clean up after an error, also of the constructor. The sink is not used again."""


class Tracker:
    """Mirrors a run. No method raises an exception of the sink."""

    def __init__(
        self, config: TrackingConfig, run: RunIdentity, folder: Path, contents: dict[str, object], steps: int
    ) -> None:
        self.failed = False
        """True after the sink has failed: mirroring has stopped."""
        self._sink: Sink | None = None
        self._every, self._bucket = max(1, steps // MOST_ROWS), -1
        self._names: set[str] = set()
        """Names of the metrics that were mirrored."""
        if config.mode != "off":
            sink = load_class(SINKS[config.mode], Sink, "tracking")  # type: ignore[type-abstract]
            try:
                self._sink = sink(config, run, folder, contents)
            except Exception as error:
                self._give_up(sink, error)
        self._stored_rows = self._sink.stored_rows if self._sink else 0

    def log(self, row: MetricRow) -> None:
        """Mirror a row of ``metrics.jsonl``. A resumed run passes its stored rows first."""
        if self._sink is None:
            return
        if row.kind == "train":  # a long run is thinned to ``MOST_ROWS``
            previous, self._bucket = self._bucket, row.step // self._every
            if self._bucket == previous:
                return
        if self._stored_rows > 0:
            self._stored_rows -= 1
            return
        metrics = {f"{row.kind}/{name}": value for name, value in row.measured.items()}
        values: dict[str, object] = {f"progress/{axis}": getattr(row, axis) for axis in AXES} | metrics
        for name in values:
            if len(self._names) < MOST_NAMES:
                self._names.add(name)
        mirrored = {name: value for name, value in values.items() if name in self._names}
        self._try(lambda sink: sink.log(row.step, row.seconds, mirrored))

    def close(self, result: RunResult | None, exit_code: int) -> None:
        """Mirror the result (None if it is missing), and end the run with its exit code."""
        self._try(lambda sink: sink.close(result, exit_code))
        self._sink = None

    def _try(self, action: Callable[[Sink], None]) -> None:
        if self._sink is not None:
            try:
                action(self._sink)
            except Exception as error:
                self._give_up(type(self._sink), error)

    def _give_up(self, sink: type[Sink], error: Exception) -> None:
        """Print one warning and stop mirroring. The message is redacted: it may quote a URL or a key."""
        self.failed, self._sink = True, None
        reason = " ".join(redact(f"{type(error).__name__}: {error}").split())
        print(
            f"warning: {sink.name} is off for the rest of this run ({reason}). "
            "The run itself goes on and its folder stays complete.",
            file=sys.stderr,
        )
        sink.abandon(error)


def open_tracker(
    config: TrackingConfig,
    run: RunIdentity,
    folder: Path,
    resolved_config: dict[str, object],
    derived: dict[str, object],
    *,
    steps: int = 0,
) -> Tracker:
    """Open the tracker of a configuration. In a distributed run, only rank 0 calls it.

    Args:
        config: mode, project, entity and tags.
        run: the identity of the run. The same key resumes the same run.
        folder: the run folder; each sink has a subfolder for its files.
        resolved_config: the full configuration as plain values, mirrored as ``cfg``, three levels deep.
        derived: values that follow from the configuration (``derived``), mirrored as ``derived``.
        steps: the planned steps, to thin the rows of a long run; 0 if unknown.
    """
    contents = {"cfg": fold(redact(resolved_config), 3), "derived": fold(redact(derived), 3), "spec": SPEC}
    return Tracker(config, run, folder, contents, steps)


def fold(tree: dict[str, object], levels: int) -> dict[str, Any]:
    """Return a tree with at most ``levels`` levels; the keys of deeper values are paths such as ``a/b``."""
    folded: dict[str, object] = {}
    for key, value in tree.items():
        if not isinstance(value, dict):
            folded[key] = value
        elif levels > 1:
            folded[key] = fold(value, levels - 1)
        else:
            folded |= {f"{key}/{inner}": leaf for inner, leaf in fold(value, 1).items()}
    return folded


def safe_texts(folder: Path) -> dict[str, str]:
    """Return the text of each of ``FILES`` that exists, without secrets. Rows of metrics are not changed."""
    texts = {}
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            text = json.dumps(plain(redact(json.loads(text))), indent=1, allow_nan=False) + "\n"
        elif path.suffix == ".yaml":
            text = OmegaConf.to_yaml(OmegaConf.create(redact(parse_yaml(text))))
        texts[name] = text
    return texts


def outcome(result: RunResult) -> dict[str, str | float]:
    """Return scores, cost and status of a result under short names, the most important first, no secrets."""
    scores: dict[str, str | float] = {}
    for metric in result.metrics:
        name = f"metrics/{metric.split}/{metric.name}"
        scores[name] = metric.value
        if len(scores) == 1:
            scores[f"{name}/standard_error"] = metric.standard_error
    training = {} if result.training is None else result.training.tree()
    cost = {f"training/{name}": training[name] for name in COSTS if training.get(name) is not None}
    status: dict[str, str | float] = {"status": str(result.status)}
    if result.message is not None:
        status["message"] = redact(result.message)
    return {**status, **dict(list(scores.items())[:2]), **cost, **scores}


def derived(result: RunResult, provenance: Provenance | None) -> dict[str, object]:
    """Return values derived from a run's configuration, which are mirrored with it.

    Args:
        result: result of the run, or its plan before training.
        provenance: provenance of the run, once it has begun.
    """
    ratio = None
    if result.planned is not None and result.parameters is not None and result.parameters.total:
        ratio = result.planned.tokens / result.parameters.total
    sources = {} if provenance is None else provenance.tree()
    return {
        **result.model_dump(exclude_unset=True, include={*KNOWN_BEFORE}),
        "tokens_per_parameter": ratio,
        **{name: sources[name] for name in ("device", "kernels", "versions", "git") if name in sources},
    }
