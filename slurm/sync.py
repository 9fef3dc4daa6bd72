"""Uploads the runs of a study to Weights & Biases, from a machine with internet, after the fact.

    python -m slurm.sync study=compare [runs=runs] [mode=online] [project=NAME] [entity=NAME]

What is uploaded is the record (``metrics.jsonl``, ``result.json``), whatever the run was tracked with: a
run that was interrupted ten times is one W&B run with every step once, under the id that
online tracking gives it. Runs without a result are left for later. A run that was uploaded
is marked in its folder and not uploaded again; one whose upload broke off goes on after the
rows that W&B has. ``mode=offline`` writes W&B's files (``RUN/wandb/offline-run-*``) without uploading.

Exit code 1 where W&B failed for a run.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.errors import ConfigError, RunError, nearest
from experiments.results import RunFolder, write_json
from experiments.tracking import RunIdentity, TrackingConfig, WandbTracker, open_tracker
from experiments.validation import typed

MARK = "wandb-uploaded.json"


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """What is asked of ``slurm.sync``."""

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


def upload(folder: RunFolder, config: SyncConfig) -> str:
    """Uploads one run; ``uploaded``, ``already there``, ``no result yet`` or ``failed``."""
    result = folder.result()
    if result is None or result["status"] == "preempted":
        return "no result yet"
    mark = folder.root / MARK
    state = {"mode": config.mode, "record": _hash(folder)}
    if mark.exists() and json.loads(mark.read_text()) == state:
        return "already there"
    tree = OmegaConf.to_container(OmegaConf.load(folder.root / "config.yaml"))
    assert isinstance(tree, dict)
    resolved: dict[str, Any] = {str(key): value for key, value in tree.items()}
    own = resolved["tracking"]
    tracking = TrackingConfig(
        mode=config.mode,
        project=config.project or own["project"],
        entity=config.entity or own["entity"],
        tags=own["tags"],
    )
    names = ("key", "study", "cell", "seed", "backbone", "objective", "task", "scale")
    identity = RunIdentity(**{name: result[name] for name in names})
    derived = {k: v for k, v in result.items() if k not in ("training", "metrics", "references")}
    tracker = open_tracker(tracking, identity, folder.root, resolved, derived)
    assert isinstance(tracker, WandbTracker)
    for row in _rows(folder)[tracker.logged :]:
        tracker.log(row)
    by_split: dict[str, dict[str, Any]] = {}
    for metric in result["metrics"]:
        by_split.setdefault(metric["split"], {})[metric["name"]] = metric["value"]
    tracker.close({**result, "metrics": by_split}, 0 if result["status"] == "complete" else 1)
    if tracker.failed:
        return "failed"
    write_json(mark, state)
    return "uploaded"


def _rows(folder: RunFolder) -> list[dict[str, Any]]:
    if not folder.metrics.exists():
        return []
    return [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]


def _hash(folder: RunFolder) -> str:
    paths = (folder.metrics, folder.root / "result.json")
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists())).hexdigest()


def main(words: Sequence[str]) -> int:
    """The exit code: 0, 1 if W&B failed for a run, or that of the mistake."""
    if any(word in ("--help", "-h") for word in words):
        print(__doc__, end="")
        return 0
    try:
        config = typed(SyncConfig, OmegaConf.to_container(OmegaConf.from_dotlist(list(words))), "")  # type: ignore[arg-type]
        study = Path(config.runs) / config.study
        folders = sorted(path.parent for path in study.glob("*/s*/config.yaml"))
        if not folders:
            raise ConfigError(f"study={config.study}: there is no run in {study}/")
    except RunError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    outcomes = []
    for path in folders:
        outcomes.append(upload(RunFolder(path), config))
        print(f"{path}: {outcomes[-1]}", flush=True)
    return int("failed" in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
