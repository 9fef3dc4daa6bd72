"""Download runs from Weights & Biases into run folders, which everything else reads.

    archbench wandb fetch study=compare entity=me [project=NAME] [runs=runs]

When a run ends, tracking saves its small files (``experiments.tracking.tracker.FILES``) as files of the W&B
run; ``archbench wandb sync`` does so for runs that were tracked otherwise. They come back to the folder that
the record names, ``runs/STUDY/CELL-DIGEST/sSEED``, so the frame has the same columns. Checkpoints are not
uploaded and do not come back. A run folder that is there already is never overwritten, unless it was fetched
and W&B has another record now.

Exit codes: 0; 1 W&B or the network failed, or a run's files cannot be used; 2 a mistake in the arguments, or
no API key.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from archbench.analysis.weights_and_biases.options import WandbConfig, require_key, wandb_failures
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.json_state import read_mark
from archbench.experiments.tracking.run_files import FETCHED, RunResult, read_result
from archbench.experiments.tracking.tracker import FILES
from archbench.experiments.tracking.wandb import FILES as FOLDER

NAME = re.compile(r"(?!\.)[\w.+-]+")


def place(record: Path, runs: Path, study: str) -> str:
    """Make a run folder of the files of a record; ``fetched``, ``already there`` or ``of another study``.

    Args:
        record: a folder with some of ``FILES``, among them config.yaml and result.json.
        runs: the folder of all studies.
        study: the study whose runs are wanted.

    Raises:
        DataError: the files are no record of a run, or name a folder outside of ``runs``.
    """
    result = _result(record)
    if result.study != study:
        return "of another study"
    folder = runs / study / f"{result.cell}-{result.digest}" / f"s{result.seed}"
    present = [record / name for name in FILES if (record / name).is_file()]
    content = b"".join(path.read_bytes() for path in present)
    state = {"record": hashlib.sha256(content).hexdigest()}
    if folder.exists():
        mark = folder / FETCHED
        if not mark.exists() or (folder / "checkpoints").exists() or read_mark(mark) == state:
            return "already there"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as temporary:
        new, old = Path(temporary) / "new", Path(temporary) / "old"
        new.mkdir()
        for path in present:
            shutil.copyfile(path, new / path.name)
        write_json(new / FETCHED, state)
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
    return "fetched"


def _result(record: Path) -> RunResult:
    """Return the result among the files of a record, checked to be one that a run folder can be named by."""
    result = read_result(record / "result.json", "it is left out", DataError)
    if result is None:
        raise DataError("there is no result.json")
    if not (record / "config.yaml").is_file():
        raise DataError("there is no config.yaml")
    for key, name in (("study", result.study), ("cell", result.cell), ("digest", result.digest)):
        if not NAME.fullmatch(name):
            raise DataError(f"result.json: {key}={name!r} is not a valid name")
    return result


Download = Callable[[Path], None]


def remote_runs(entity: str, project: str) -> Iterator[tuple[str, Download]]:
    """Yield the training runs of a project in W&B: id, and a function that downloads its record."""
    import wandb

    def download(run: Any, folder: Path) -> None:
        for file in run.files([f"{FOLDER}/{name}" for name in FILES]):
            file.download(root=str(folder), replace=True)

    api = wandb.Api()
    for run in api.runs(f"{entity or api.default_entity}/{project}", filters={"jobType": "train"}):
        yield run.id, partial(download, run)


def fetch(records: Iterator[tuple[str, Download]], config: WandbConfig) -> int:
    """Download every run, printing the outcome of each; return how many have files that cannot be used."""
    unusable = 0
    for run_id, download in records:
        with tempfile.TemporaryDirectory() as temporary:
            download(Path(temporary))
            try:
                outcome = place(Path(temporary) / FOLDER, Path(config.runs), config.study)
            except DataError as error:
                outcome = f"cannot be used: {error}"
                unusable += 1
        print(f"{run_id}: {outcome}", flush=True)
    return unusable


def prepare(config: WandbConfig) -> WandbConfig:
    """Check that there is an API key. Raises ConfigError."""
    require_key()
    return config


def publish(config: WandbConfig) -> int:
    """Download the runs of a study; return 1 if one cannot be used."""
    with wandb_failures():
        return int(fetch(remote_runs(config.entity, config.project or config.study), config) > 0)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code; ``--help`` lists them."""
    return run_command(__doc__, WandbConfig, arguments, prepare, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
