"""Mirrors a run to where people look at runs: Weights & Biases, TensorBoard, or nowhere.

``metrics.jsonl`` and ``result.json`` in the run folder are the truth; what is
mirrored is a view of them and may be lost without harm. So a tracker never
fails a run: the first error becomes one warning on stderr, and from then on the
tracker does nothing.

A run that goes on after an interruption gives its tracker the rows of its record
again. A sink that starts anew (files) takes them all, one that went on (a server)
leaves out as many as it holds. So every step is mirrored once, however often a
run was stopped.

Environment variables are not mirrored, and ``redact`` removes what looks like a
secret from everything else. ``docs/how-to/tracking.md`` has the
names that are used and what was tried of all this.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config.schema import SINKS, TAG_KINDS, TrackingConfig
from experiments.config.structured import load_class
from experiments.runtime.secrets import redact
from experiments.tracking.run_files import AXES, MetricRow, RunResult

JOB_TYPES = ("train", "eval", "bench", "analysis")
SPEC = 1
"""Version of the names under which things are mirrored."""
MOST_ROWS = 10_000
"""Rows of training that a run mirrors at most; the record has all."""
MOST_NAMES = 300
"""Different metrics that a run mirrors at most, as W&B slows down with their number."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Identity of a run: the names by which it is found and grouped."""

    key: str
    """The run's key, for example ``mamba-recall-nano-ab12cd34-s0``; the W&B run id."""
    study: str
    group: str
    """The key without its seed: runs that differ in the seed alone are one group."""
    tags: dict[str, str]
    """Value by kind, of ``TAG_KINDS`` without ``status``."""
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
        """Return the identity of a run from its result, or from what is known of it before training."""
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
    """Somewhere to mirror a run to. It may raise anything: ``Tracker`` sees to it."""

    name: str
    """Name used in warnings."""
    held: int = 0
    """Rows of this run that it has already: not 0 where it goes on with a run."""

    @abstractmethod
    def __init__(
        self, config: TrackingConfig, run: RunIdentity, folder: Path, contents: dict[str, object]
    ) -> None:
        """Starts; ``contents`` is what it shows as the run's configuration."""

    @abstractmethod
    def log(self, step: int, seconds: float, names: dict[str, object]) -> None:
        """Mirrors one row; ``seconds`` is the time trained up to it."""

    @abstractmethod
    def close(self, result: RunResult | None, exit_code: int) -> None:
        """Mirror the result (None if there is none), without secrets, and end the run with its exit code."""

    @staticmethod  # noqa: B027
    def abandon(error: Exception) -> None:
        """Cleans up after an error, the constructor's too; the sink is not used again."""


class Tracker:
    """A run's mirror. No method ever raises because of the sink."""

    def __init__(
        self, config: TrackingConfig, run: RunIdentity, folder: Path, contents: dict[str, object], steps: int
    ) -> None:
        self.failed = False
        """True after the sink has failed: nothing is mirrored any more."""
        self._sink: Sink | None = None
        self._every, self._bucket = max(1, steps // MOST_ROWS), -1
        self._names: set[str] = set()
        if config.mode != "off":
            sink = load_class(SINKS[config.mode], Sink, "tracking")  # type: ignore[type-abstract]
            try:
                self._sink = sink(config, run, folder, contents)
            except Exception as error:
                self._give_up(sink, error)
        self._held = self._sink.held if self._sink else 0

    def log(self, row: MetricRow) -> None:
        """Mirror a row of ``metrics.jsonl``. A run that goes on first gives those of its record again."""
        if self._sink is None or self._thinned(row):
            return
        if self._held > 0:
            self._held -= 1
            return
        names = self._known(_names(row))
        self._try(lambda sink: sink.log(row.step, row.seconds, names))

    def close(self, result: RunResult | None, exit_code: int) -> None:
        """Mirrors the result (None when there is none) and ends the run with its exit code."""
        self._try(lambda sink: sink.close(result, exit_code))
        self._sink = None

    def _thinned(self, row: MetricRow) -> bool:
        """Return True for a training row that is left out: at most 10,000 rows of a run are mirrored."""
        if row.kind != "train":
            return False
        before, self._bucket = self._bucket, row.step // self._every
        return self._bucket == before

    def _known(self, names: dict[str, object]) -> dict[str, object]:
        """Without the metrics that are too many."""
        for name in names:
            if len(self._names) < MOST_NAMES:
                self._names.add(name)
        return {name: value for name, value in names.items() if name in self._names}

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
    """Opens the tracker that ``config`` asks for. In a distributed run, call it in rank 0 only.

    Args:
        config: mode, project, entity and tags.
        run: the identity of the run. The same key goes on with the same run.
        folder: the run folder; sinks keep their files in a folder of their own inside it.
        resolved_config: the whole config as plain dicts; shown as ``cfg``, three levels deep.
        derived: what follows from the config, from ``experiments.tracking.derived``; shown as ``derived``.
        steps: the steps planned, for a long run to be thinned by; 0 where they are not known.
    """
    contents = {"cfg": fold(redact(resolved_config), 3), "derived": fold(redact(derived), 3), "spec": SPEC}
    return Tracker(config, run, folder, contents, steps)


def _names(row: MetricRow) -> dict[str, object]:
    """Return a row under the names that are shown: ``progress/tokens``, ``train/loss`` and so on."""
    metrics = {f"{row.kind}/{name}": value for name, value in row.measured.items()}
    return {f"progress/{axis}": getattr(row, axis) for axis in AXES} | metrics


def fold(tree: dict[str, object], levels: int) -> dict[str, Any]:
    """The tree with at most ``levels`` levels; what lies deeper gets its path as its key, ``a/b``."""
    folded: dict[str, object] = {}
    for key, value in tree.items():
        if not isinstance(value, dict):
            folded[key] = value
        elif levels > 1:
            folded[key] = fold(value, levels - 1)
        else:
            folded |= {f"{key}/{inner}": leaf for inner, leaf in fold(value, 1).items()}
    return folded
