"""Upload the runs of a study to Weights & Biases afterwards, from a machine with internet.

    archbench wandb sync study=compare [runs=runs] [mode=online] [project=NAME] [entity=NAME]

It uploads the files of the run folder (``metrics.jsonl``, ``result.json``), whatever tracker the run
used. A run that was preempted ten times is one W&B run with every step once, under the id of
online tracking. Runs without a result are skipped. An uploaded run is marked in its folder and
not uploaded again; an upload that broke off resumes after the rows that W&B has.
``mode=offline`` writes W&B's files (``RUN/wandb/offline-run-*``) without uploading.

Exit codes: 0; 1 W&B failed for a run; 2 a mistake in the arguments, or no API key.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archbench.analysis.weights_and_biases.options import WandbConfig, require_key, wandb_failures
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.errors import nearest
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.upload import study_folders, upload

MODES = ("online", "offline")


@dataclass(frozen=True, kw_only=True)
class SyncConfig(WandbConfig):
    """The study to upload."""

    mode: str = "online"
    """``online`` uploads; ``offline`` writes the files that ``wandb sync`` takes."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}{nearest(self.mode, MODES)}")


def prepare(config: SyncConfig) -> tuple[SyncConfig, list[Path]]:
    """Return the folders of the runs. Raises ConfigError."""
    folders = study_folders(Path(config.runs), config.study)
    if config.mode == "online":
        require_key()
    return config, folders


def publish(config: SyncConfig, folders: Sequence[Path]) -> int:
    """Upload the runs, printing the outcome of each; return 1 if W&B failed for one."""
    failed = False
    with wandb_failures():
        for path in folders:
            outcome = upload(RunFolder(path), mode=config.mode, project=config.project, entity=config.entity)
            failed |= outcome == "failed"
            print(f"{path}: {outcome}", flush=True)
    return int(failed)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code; ``--help`` lists them."""
    return run_command(__doc__, SyncConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
