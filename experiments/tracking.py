"""Mirrors a run to Weights & Biases, online or offline, or to nothing.

``metrics.jsonl`` and ``result.json`` in the run folder are the truth; what is
written here is a view of them and may be lost without harm. So a tracker never
fails a run: the first error becomes one warning on stderr, and from then on the
tracker does nothing.

Offline runs lie inside their run folders, one offline folder for each sitting of a
run that was interrupted. To upload a study later, from the record and without the
steps that were computed twice:

    python -m slurm.sync study=STUDY

Neither the command line nor environment variables are recorded, and ``redact``
removes what looks like a secret from everything else.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.redaction import redact

MODES = ("off", "online", "offline")
AXES = ("step", "tokens", "flops", "seconds")
SUMMARIES = {
    "train/loss": "min",
    "validation/loss": "min",
    "validation/bits_per_byte": "min",
    "validation/answer_accuracy": "max",
}
INIT_TIMEOUT = 20.0
"""Seconds to wait for the server when a run starts."""
FINISH_TIMEOUT = 60.0
"""Seconds to wait for the last uploads when a run ends."""
PREEMPTED = 75
"""The exit code of a run that was interrupted and can go on; W&B shows it as preempted."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where metrics are mirrored."""

    mode: str = "off"
    """``off``, ``online`` (uploads while training) or ``offline`` (files in the run folder)."""
    project: str | None = None
    """W&B project; None takes the name of the study."""
    entity: str | None = None
    """W&B user or team; None takes the default of the account."""
    tags: list[str] = field(default_factory=list)
    """Tags beside the names of backbone, objective, task and scale."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(
                f"tracking.mode={self.mode!r} is not one of {', '.join(MODES)} "
                f'(in YAML, put "off" in quotes: the bare word means false)'
            )


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Which run this is: the names it is found and grouped by."""

    key: str
    """The run's key, for example ``mamba-recall-nano-ab12cd34-s0``; the W&B run id."""
    study: str
    cell: str
    """The setting without its seed; runs that differ in the seed alone form one W&B group."""
    seed: int
    backbone: str
    objective: str
    task: str
    scale: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]{1,64}", self.key):
            raise ValueError(
                f"key={self.key!r} cannot be a run id: use 1 to 64 letters, digits, '-', '_' or '.'"
            )


class Tracker(ABC):
    """Somewhere to mirror a run to. Neither method ever raises because of the sink."""

    @abstractmethod
    def log(self, row: dict[str, object]) -> None:
        """Mirrors one row of ``metrics.jsonl``."""

    @abstractmethod
    def close(self, result: dict[str, object] | None, exit_code: int) -> None:
        """Mirrors the result (None when there is none) and ends the run with its exit code."""


class NoTracker(Tracker):
    """Mirrors nothing."""

    def log(self, row: dict[str, object]) -> None:
        pass

    def close(self, result: dict[str, object] | None, exit_code: int) -> None:
        pass


class WandbTracker(Tracker):
    """Mirrors to Weights & Biases."""

    def __init__(
        self,
        config: TrackingConfig,
        run: RunIdentity,
        folder: Path,
        contents: dict[str, Any],
    ) -> None:
        """Starts the W&B run, or goes on with it; ``contents`` is what W&B shows as its config."""
        self.failed = False
        """True once W&B has failed and nothing is mirrored any more."""
        self._run: Any = None
        try:
            self._run = _start(config, run, folder, contents)
        except Exception as error:
            self._give_up(error)

    @property
    def logged(self) -> int:
        """Rows that the W&B run holds already: not 0 where it goes on with one."""
        return 0 if self._run is None else int(self._run.step)

    def log(self, row: dict[str, object]) -> None:
        if self._run is None:
            return
        names = _names(row)
        try:
            self._run.log(names)
        except Exception as error:
            self._give_up(error)

    def close(self, result: dict[str, object] | None, exit_code: int) -> None:
        if self._run is None:
            return
        summary = {f"result/{name}": value for name, value in _fold(redact(result or {}), 1).items()}
        try:
            self._run.summary.update(summary)
            if exit_code == PREEMPTED:
                self._run.mark_preempting()
            self._run.finish(exit_code=exit_code)
        except Exception as error:
            self._give_up(error)
        self._run = None

    def _give_up(self, error: Exception) -> None:
        """One warning, then silence. The message is redacted: it may quote a URL or a key."""
        self.failed = True
        self._run = None
        reason = " ".join(redact(f"{type(error).__name__}: {error}").split())
        print(
            f"warning: W&B is off for the rest of this run ({reason}). "
            "The run itself goes on and its folder stays complete.",
            file=sys.stderr,
        )
        if isinstance(error, ConnectionError):
            # The helper process of W&B is gone. Without this, each exit hook prints a traceback,
            # and the next run of this process would talk to the dead helper.
            import wandb

            with contextlib.suppress(Exception, SystemExit):
                wandb.teardown()


def open_tracker(
    config: TrackingConfig,
    run: RunIdentity,
    folder: Path,
    resolved_config: dict[str, Any],
    derived: dict[str, Any],
) -> Tracker:
    """Opens the tracker that ``config`` asks for. In a distributed run, call it in rank 0 only.

    Args:
        config: mode, project, entity and tags.
        run: the identity of the run. The same key goes on with the same W&B run.
        folder: the run folder; W&B keeps its files in ``folder/wandb``.
        resolved_config: the whole config as plain dicts; shown as ``cfg``, three levels deep.
        derived: what follows from the config (parameters, FLOPs per token, decoding-state bytes,
            data fingerprint, config digest); shown as ``derived``.
    """
    if config.mode == "off":
        return NoTracker()
    contents = {"cfg": _fold(redact(resolved_config), 3), "derived": _fold(redact(derived), 3)}
    return WandbTracker(config, run, folder, contents)


def _start(config: TrackingConfig, run: RunIdentity, folder: Path, contents: dict[str, Any]) -> Any:
    """The W&B run. wandb is imported here and nowhere else: it takes half a second."""
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # read on import; stops reports to third parties
    import wandb

    settings = wandb.Settings(
        mode="online" if config.mode == "online" else "offline",
        silent=True,
        console="off",  # the run folder has the log; a copy might hold secrets
        save_code=False,
        disable_git=True,
        x_disable_machine_info=True,  # command line, program, hardware
        x_save_requirements=False,
        symlink=False,
        reinit="create_new",  # several runs may share a process; each keeps its own rows
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
        finish_timeout_raises=True,
        x_transaction_log_flush_interval=0.5,  # seconds of rows that a kill may cost; 15 by default
    )
    wandb.setup(settings=settings)
    if config.mode == "online" and not wandb.login(prompt=False, verify=False):
        raise ValueError("no API key: set WANDB_API_KEY, run `wandb login`, or use tracking=wandb_offline")
    tags = [run.backbone, run.objective, run.task, run.scale, *redact(config.tags)]
    handle = wandb.init(
        id=run.key,
        name=run.key,
        project=config.project or run.study,
        entity=config.entity,
        group=run.cell,
        job_type="train",
        tags=list(dict.fromkeys(tags)),
        config=contents,
        dir=folder,
        resume="allow",
        settings=settings,
    )
    for name in ("train/*", "validation/*", "routing/*"):
        handle.define_metric(name, step_metric="progress/tokens")
    for name, summary in SUMMARIES.items():
        handle.define_metric(name, step_metric="progress/tokens", summary=summary)
    return handle


def _names(row: dict[str, object]) -> dict[str, object]:
    """A row under the names W&B shows: ``progress/tokens``, ``train/loss`` and so on."""
    metrics = {f"{row['kind']}/{name}": value for name, value in row.items() if name not in ("kind", *AXES)}
    return {f"progress/{axis}": row[axis] for axis in AXES if axis in row} | metrics


def _fold(tree: dict[str, Any], levels: int) -> dict[str, Any]:
    """The tree with at most ``levels`` levels; what lies deeper gets its path as its key, ``a/b``."""
    folded: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(value, dict):
            folded[key] = value
        elif levels > 1:
            folded[key] = _fold(value, levels - 1)
        else:
            folded |= {f"{key}/{inner}": leaf for inner, leaf in _fold(value, 1).items()}
    return folded
