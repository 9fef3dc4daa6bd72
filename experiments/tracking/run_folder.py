"""The run folder: the files of one run, and the run folders of a study.

The path of a run folder is a function of the configuration, not of the time.

config.yaml        the resolved configuration
provenance.json    code, versions, data fingerprint, device, kernels, command
metrics.jsonl      one row for each logged step and each evaluation
train.log          the lines that its processes printed, with the time (UTC)
routing/           the experts that process a few fixed examples at each evaluation, for a mixture of experts
checkpoints/       the state needed to resume
saved.json         the step of the checkpoint that was saved last
model.json         the model without training data, to open it on any machine
tokenizer.json     its tokenizer, for tasks of text
lock.json          the process that writes the run
failures/          steps that were not finite, and stacks of steps that hung
restarts.json      restarts of a SLURM job without progress
result.json        written last, atomically: how the run ended, or that it was stopped and can be resumed
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from archbench.experiments.runtime.atomic_io import plain, write_bytes, write_json, write_text
from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.runtime.json_state import read_model
from archbench.experiments.runtime.run_status import FINAL
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.tracking.run_files import (
    CHECKPOINT,
    HASHED,
    EvaluationRow,
    MetricRow,
    Provenance,
    RunResult,
    TrainRow,
    checksum,
    damaged_files,
    file_record,
    parse_rows,
    read_result,
)

SEED = re.compile(r"s(0|[1-9][0-9]*)")
NO_RUN = (
    "left out, as its name is not CELL-DIGEST/sSEED: rename it to the key in its result.json, or remove it"
)
MISPLACED = "move the folder back to where its run belongs, or remove it"
DAMAGED_RESULT = "remove it, and the same command continues from the last checkpoint"
LOST = "restore it, or remove the run's folder and train it again"
DAMAGED_PROVENANCE = (
    "restore it, or continue the training in a run of its own with continue_from= the run's folder"
)


def misplacement(folder: Path, recorded: str) -> str | None:
    """Return a message if a folder has another run than its path states, else None.

    A folder that was copied, swapped or renamed would count as another seed, or as another model.

    Args:
        folder: path that ends in ``CELL-DIGEST/sSEED``.
        recorded: run key in a file of the folder.
    """
    key = f"{folder.parent.name}-{folder.name}"
    return None if recorded == key else f"it holds the run {recorded}, not {key}"


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, root: Path, *, writes: bool = True) -> None:
        """With ``writes=False`` no method changes a file: of multiple processes only one writes."""
        self.root, self.writes = root, writes
        self.metrics = root / "metrics.jsonl"
        self.checkpoints = root / "checkpoints"
        self.routing = root / "routing"
        self._running: Any = None
        """Running hash of the rows that were written to metrics.jsonl, not of the content of the file."""
        self._bytes = self._rows = 0
        self.guard: Callable[[], object] = lambda: None
        """Called before each write; raises LockedError if another process may write the run by now."""
        self._written: dict[str, bytes] = {}
        """Files that were written once and must not change while the run trains, by name."""

    def result(self, *, anywhere: bool = False) -> RunResult | None:
        """Return the result, or None while the run has not ended.

        Args:
            anywhere: do not check the path of the folder, which may have been copied for its model.

        Raises:
            CheckpointError: the result is damaged, or that of another run than the path states.
        """
        result = read_result(self.root / "result.json", DAMAGED_RESULT)
        if result is not None and not anywhere:
            self.check_key(result.key)
        return result

    def check_key(self, key: str) -> None:
        """Raise CheckpointError if ``key``, of a file in the folder, differs from the key in its path."""
        if other := misplacement(self.root.absolute(), key):
            raise CheckpointError(f"{self.root}: {other}: {MISPLACED}")

    def provenance(self) -> Provenance | None:
        """Return provenance.json; None for a run that has not begun. Raises CheckpointError if damaged."""
        return read_model(self.root / "provenance.json", Provenance, DAMAGED_PROVENANCE)

    @property
    def key(self) -> str:
        """Return the run key, a part of the path."""
        return f"{self.root.parent.name}-{self.root.name}"

    @property
    def has_final_status(self) -> bool:
        """Return True if another run would have the same result: complete, diverged, out of memory.

        Raises CheckpointError if the result is damaged, lacks steps of a complete training, or lists a file
        that is missing.
        """
        result = self.result()
        if result is None or result.status not in FINAL:
            return False
        absent = {name: None for name in HASHED if not (self.root / name).is_file()}
        if result.lost_steps:
            raise CheckpointError(
                f"{self.root / 'result.json'}: status is complete, but {result.lost_steps} planned steps are "
                f"missing: {DAMAGED_RESULT}"
            )
        for name in damaged_files(result, absent):
            raise CheckpointError(f"{self.root / name}: is missing: {LOST}")
        return True

    def open(self, config: dict[str, Any], provenance: Provenance) -> None:
        """Create the folder, and write configuration and provenance."""
        if not self.writes:
            return
        self.guard()
        self.root.mkdir(parents=True, exist_ok=True)
        write_text(self.root / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(redact(config))))
        write_json(self.root / "provenance.json", redact(provenance.tree()))
        self.keep("config.yaml", "provenance.json")
        (self.root / "result.json").unlink(missing_ok=True)
        for leftover in self.root.glob(".*.tmp"):  # of a writer that was killed
            leftover.unlink(missing_ok=True)

    def keep(self, *names: str) -> None:
        """Remember the content of files that were written now, for ``restore``."""
        for name in names:
            if (path := self.root / name).is_file():
                self._written[name] = path.read_bytes()

    def restore(self) -> list[str]:
        """Write the files again that were changed or removed since they were written. Return their names."""
        self.guard()
        changed = [name for name, content in self._written.items() if _content(self.root / name) != content]
        for name in changed:
            write_bytes(self.root / name, self._written[name])
        return changed

    @property
    def has_other_rows(self) -> bool:
        """Return True if metrics.jsonl is not what was written to it."""
        if self._running is None:
            return False
        return hashlib.sha256(_content(self.metrics) or b"").digest() != self._running.digest()

    def log(self, row: MetricRow) -> None:
        """Append a row to metrics.jsonl. Raises LockedError if another process may write the run."""
        if not self.writes:
            return
        self.guard()
        line = (json.dumps(plain(row.tree()), allow_nan=False) + "\n").encode()
        self._begin_hash()
        with self.metrics.open("ab") as file:
            file.write(line)
        self._add(line)

    def metrics_record(self) -> dict[str, int | str]:
        """Return rows, bytes and hash of the content written to metrics.jsonl, for a checkpoint."""
        if not self.writes:
            return {}
        self._begin_hash()
        return {"rows": self._rows, "bytes": self._bytes, "sha256": self._running.hexdigest()}

    def _begin_hash(self) -> None:
        if self._running is None:
            self._running, self._bytes, self._rows = hashlib.sha256(), 0, 0
            if self.metrics.exists():
                self._add(self.metrics.read_bytes())

    def _add(self, data: bytes) -> None:
        self._running.update(data)
        self._bytes += len(data)
        self._rows += data.count(b"\n")

    def rows(self) -> list[TrainRow | EvaluationRow]:
        """Return the rows of metrics.jsonl, without an incomplete row of a crash."""
        return [row for _, row in self._lines()]

    def _lines(self) -> Iterator[tuple[str, TrainRow | EvaluationRow]]:
        """Yield each line of metrics.jsonl that is a row, with the row."""
        if self.metrics.exists():
            yield from parse_rows(self.metrics.read_text(encoding="utf-8", errors="replace").splitlines())

    def sync(self) -> None:
        """Sync metrics.jsonl to disk, so that its rows survive a crash of the machine."""
        if self.writes and self.metrics.exists():
            with self.metrics.open("rb") as file:
                os.fsync(file.fileno())

    def has_row(self, kind: str, step: int) -> bool:
        """Return True if metrics.jsonl has a row of this kind for a step."""
        return any(row.kind == kind and row.step == step for _, row in self._lines())

    def score_to_minimize(self) -> float:
        """Return the last validation score, negated if a higher score is better; infinite without a score."""
        result = self.result()
        scores = [row.measured for row in self.rows() if row.kind == "validation"]
        if result is None or not result.metrics or not scores:
            return math.inf
        metric = result.metrics[0]
        score = float(scores[-1].get(metric.name, math.inf))
        return -score if metric.direction == "higher" else score

    def rewind(self, step: int) -> None:
        """Remove the rows after ``step``, which will be repeated, and an incomplete row of a crash."""
        if not self.writes:
            return
        self.guard()
        for path in self.routing.glob("step-*.safetensors"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        if not self.metrics.exists():
            return
        lines = [line + "\n" for line, row in self._lines() if row.step <= step]
        write_text(self.metrics, "".join(lines))
        self._running = None  # hashed again from the file

    def finish(self, result: RunResult) -> None:
        """Write the result, with the hashes of the other files and its checksum."""
        if self.writes:
            self.guard()
            self.write_result(redact(result.tree()))

    def write_result(self, tree: dict[str, Any]) -> None:
        """Write result.json from its content without hashes."""
        files: dict[str, dict[str, object]] = {}
        for name in HASHED:
            path = self.root / name
            if path == self.metrics and (path.exists() or self._running is not None):
                self._begin_hash()
                files[name] = {"bytes": self._bytes, "sha256": self._running.hexdigest()}
            elif path.exists():
                files[name] = file_record(path.read_bytes()).tree()
        step = (tree.get("training") or {}).get("steps")
        name = CHECKPOINT.format(step=step) if isinstance(step, int) else ""
        if step and (manifest := _content(self.root / name)) is not None:
            files[name] = file_record(manifest).tree()
        content = {**tree, "files": files}
        write_json(self.root / "result.json", {**content, "checksum": checksum(content)})


def _content(path: Path) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


@dataclass(frozen=True, kw_only=True)
class StudyFolders:
    """The folders in the folder of a study, by their paths inside it, in order."""

    runs: list[str]
    """``CELL-DIGEST/sSEED``."""
    others: list[str]
    """Other folders with runs, such as copies."""

    @classmethod
    def of(cls, study: Path) -> StudyFolders:
        """Return the folders of a study; none if it does not exist."""
        runs, others = [], []
        for cell in _folders(study):
            names = _folders(study / cell)
            seeds = [name for name in names if SEED.fullmatch(name)]
            if "-" in cell:
                runs += [f"{cell}/{name}" for name in seeds]
                others += [f"{cell}/{name}" for name in names if name not in seeds]
            elif seeds:
                others.append(cell)
        return cls(runs=runs, others=others)


def _folders(path: Path) -> list[str]:
    """Return the sorted names of the folders in a folder; none if it cannot be listed."""
    try:
        with os.scandir(path) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name[0] != "." and (entry.is_dir(follow_symlinks=False) or entry.is_symlink())
            )
    except OSError:
        return []
