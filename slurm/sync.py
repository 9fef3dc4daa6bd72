"""Uploads the runs of a study to Weights & Biases afterwards, from a machine with internet.

    archbench wandb sync study=compare [runs=runs] [mode=online] [project=NAME] [entity=NAME]

It uploads the files of the run folder (``metrics.jsonl``, ``result.json``), whatever tracker the run
used. A run that was preempted ten times is one W&B run with every step once, under the id of
online tracking. Runs without a result are skipped. An uploaded run is marked in its folder and
not uploaded again; an upload that broke off resumes after the rows that W&B has.
``mode=offline`` writes W&B's files (``RUN/wandb/offline-run-*``) without uploading.

The exit code is 1 if W&B failed for a run, or there is no API key.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.config.structured import typed_words
from experiments.runtime.errors import RunError, nearest
from experiments.runtime.streams import guard_streams
from experiments.tracking.run_folder import RunFolder
from experiments.tracking.upload import study_folders, upload
from experiments.tracking.wandb import NO_KEY, signed_in


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """Options of ``slurm.sync``."""

    study: str
    """The study, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""
    mode: str = "online"
    """``online`` uploads; ``offline`` writes the files that ``wandb sync`` takes."""
    project: str | None = None
    """W&B project; null takes that of the run's own settings, else the name of the study."""
    entity: str | None = None
    """W&B user or team; null takes that of the run's own settings, else the account's default."""

    def __post_init__(self) -> None:
        if self.mode not in ("online", "offline"):
            raise ValueError(f"mode={self.mode!r}{nearest(self.mode, ('online', 'offline'))}")


def main(words: Sequence[str]) -> int:
    """Upload the runs; return 1 if W&B failed for one, the code of a mistake, or 0."""
    guard_streams()
    if any(word in ("--help", "-h") for word in words):
        print(__doc__, end="")
        return 0
    try:
        config = typed_words(SyncConfig, words)
        folders = study_folders(Path(config.runs), config.study)
        if config.mode == "online" and not signed_in():
            raise RunError(NO_KEY)
    except (RunError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return getattr(error, "exit_code", RunError.exit_code)
    outcomes = []
    for path in folders:
        outcomes.append(
            upload(RunFolder(path), mode=config.mode, project=config.project, entity=config.entity)
        )
        print(f"{path}: {outcomes[-1]}", flush=True)
    return int("failed" in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
