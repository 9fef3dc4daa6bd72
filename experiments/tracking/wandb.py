"""Weights & Biases, online or offline.

Offline runs are inside their run folders, in ``wandb/offline-run-*``, one for each session of a run
that was interrupted; the newest has every row of the run. When a run ends, its small files
(``tracker.FILES``) are saved as files of the W&B run, for ``archbench wandb fetch`` to read back; with
``tracking.artifacts=true`` the model is logged as an artifact.

The summary of a run is a row of W&B's table of runs. It has scores, cost and status, at most ``MOST_SUMMARY``
keys; the settings are in the configuration.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from archbench.experiments.config.schema import MOST_TAG, TrackingConfig
from archbench.experiments.runtime.errors import Preempted
from archbench.experiments.runtime.json_state import json_objects
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.tracking.run_files import AXES, RunResult
from archbench.experiments.tracking.tracker import RunIdentity, Sink, outcome, safe_texts

SUMMARIES = {
    "train/*": "none",
    "validation/*": "none",
    "routing/*": "none",
    "train/loss": "min,max,last",
    "progress/*": "last",
}
"""Summaries that W&B stores of each metric in addition to its curve."""
MOST_SUMMARY = 40
"""Maximum number of keys of a summary, without those of W&B (``_step``, ``_runtime`` ...)."""
MOST_VALIDATION = 3
"""Validation metrics whose lowest, highest and last value are in the summary."""
MOST_RESULT = MOST_SUMMARY - len(AXES) - 3 * (MOST_VALIDATION + 1)
"""Maximum number of keys of the result in the summary."""
FILES = "record"
"""Folder of the W&B run with the files of the run folder."""
INIT_TIMEOUT = 20.0
"""Seconds to wait for the server when a run starts."""
FINISH_TIMEOUT = 60.0
"""Seconds to wait for the last uploads when a run ends."""
FLUSH_SECONDS = 0.5
"""Seconds between writes offline: at most the rows of this time are lost. The default of W&B is 15."""
REJECTED = ("filestream: fatal error", "file transfer: upload")
"""Prefixes of the client's messages that the server rejected rows or files, which are not sent again."""
RUNNING = "status:running"
NO_KEY = "no API key: set WANDB_API_KEY or run `wandb login`"


class WandbSink(Sink):
    """A run of W&B."""

    name = "W&B"

    def __init__(
        self, config: TrackingConfig, run: RunIdentity, folder: Path, contents: dict[str, object]
    ) -> None:
        self.folder = folder
        self.run = start(config, run, folder, contents)
        # Of a resumed run, ``run.step`` is still 0 (wandb 0.31), and every row would be there twice.
        self.stored_rows = int(self.run.starting_step)
        self.artifacts = config.artifacts
        self.validated: set[str] = set()

    def log(self, step: int, seconds: float, names: dict[str, object]) -> None:
        for name in names:
            if name.startswith("validation/") and name not in self.validated:
                if len(self.validated) < MOST_VALIDATION:
                    self.run.define_metric(name, step_metric="progress/tokens", summary="min,max,last")
                self.validated.add(name)
        self.run.log(names)

    def close(self, result: RunResult | None, exit_code: int) -> None:
        if result is not None:
            tags = [tag for tag in self.run.tags if tag != RUNNING]
            self.run.tags = [*tags, f"status:{result.status}"]
            summary = dict(list(outcome(result).items())[:MOST_RESULT])
            self.run.summary.update({f"result/{name}": value for name, value in summary.items()})
            # Redacted copies. A link to a file of the run folder would change with it.
            copies = Path(self.run.dir) / FILES
            copies.mkdir(exist_ok=True)
            for name, text in safe_texts(self.folder).items():
                (copies / name).write_text(text, encoding="utf-8")
            self.run.save(str(copies / "*"), base_path=self.run.dir, policy="now")
            if self.artifacts and result.status == RunStatus.COMPLETE and result.training is not None:
                self._log_model(result.training.steps, summary)
        if exit_code == Preempted.exit_code:
            self.run.mark_preempting()
        self.run.finish(exit_code=exit_code)
        log = Path(self.run.dir).parent / "logs" / "debug-internal.log"
        if (message := rejection(log)) is not None:
            raise RuntimeError(f"{message}; archbench wandb sync uploads what is missing")

    def _log_model(self, step: int, metadata: dict[str, str | float]) -> None:
        """Log the final model: the files of the run folder that ``run=`` or ``init_from`` needs."""
        import wandb

        artifact = wandb.Artifact(f"{self.run.id}-model", type="model", metadata=metadata)
        checkpoint = self.folder / "checkpoints" / f"step-{step:08d}"
        if not (checkpoint / "MANIFEST.json").is_file():
            raise RuntimeError(f"{checkpoint}: the last checkpoint is damaged, so the model is not uploaded")
        texts = safe_texts(self.folder)
        for name in ("config.yaml", "result.json"):
            with artifact.new_file(name) as file:
                file.write(texts[name])
        files = [*self.folder.glob("model.json"), *self.folder.glob("tokenizer*")]
        files += [path for path in checkpoint.rglob("*") if path.is_file()]
        for path in files:
            # Immutable: W&B reads the file in place, instead of storing a copy of each model.
            artifact.add_file(str(path), name=str(path.relative_to(self.folder)), policy="immutable")
        self.run.log_artifact(artifact)

    @staticmethod
    def abandon(error: Exception) -> None:
        """Clean up if W&B's helper process has ended: otherwise each exit hook prints a traceback, and the
        next run of this process would connect to the ended helper."""
        if isinstance(error, ConnectionError):
            import wandb

            with contextlib.suppress(Exception, SystemExit):
                wandb.teardown()


def rejection(log: Path) -> str | None:
    """Return the first message in the client's log on data that the server rejected, or None.

    The client ends such a run without an error.
    """
    if not log.is_file():
        return None
    for line in json_objects(log.read_text(encoding="utf-8", errors="replace").splitlines()):
        message = str(line.get("msg", ""))
        if str(line.get("level", "")).startswith("ERROR") and message.startswith(REJECTED):
            return message.partition("\n")[0][:300]
    return None


def signed_in() -> bool:
    """Return True if there is an API key, without a prompt and without sending data.

    Raises ValueError for an invalid key.
    """
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # read on import; stops reports to third parties
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True))
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.errors.AuthenticationError as error:
        reason = redact(str(error)).rstrip(".")
        raise ValueError(f"W&B: {reason}") from None


def start(config: TrackingConfig, run: RunIdentity, folder: Path, contents: dict[str, object]) -> Any:
    """Return the W&B run. The import of wandb takes half a second, so it is imported on first use."""
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # read on import; stops reports to third parties
    import wandb

    settings = wandb.Settings(
        mode="online" if config.mode == "online" else "offline",
        silent=True,
        console="off",  # the run folder has the log; a copy might contain secrets
        save_code=False,
        disable_git=True,
        x_disable_machine_info=True,  # command line, program, hardware
        x_save_requirements=False,
        symlink=False,
        reinit="create_new",  # multiple runs may share a process, with separate rows
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
        finish_timeout_raises=True,
        x_transaction_log_flush_interval=FLUSH_SECONDS,
    )
    wandb.setup(settings=settings)
    if config.mode == "online" and not wandb.login(prompt=False, verify=False):
        raise ValueError(f"{NO_KEY}, or use tracking=wandb_offline")
    for key in ("project", "entity"):
        if redact(value := getattr(config, key)) != value:
            raise ValueError(f"tracking.{key} looks like a secret: give the name of the {key}")
    tags = [f"{kind}:{value}" for kind, value in run.tags.items()] + redact(config.tags)
    handle = wandb.init(
        id=run.key,
        name=run.key,
        project=config.project or run.study,
        entity=config.entity,
        group=run.group,
        job_type=run.job_type,
        tags=list(dict.fromkeys([*(tag[:MOST_TAG] for tag in tags), RUNNING])),
        config=contents,
        dir=folder,
        resume="allow",
        settings=settings,
    )
    for name, summary in SUMMARIES.items():
        axis = None if name.startswith("progress/") else "progress/tokens"
        handle.define_metric(name, step_metric=axis, summary=summary)
    return handle
