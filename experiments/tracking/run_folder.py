"""The run folder: all files of one run. Its path is a function of the configuration, never of the clock.

config.yaml        the resolved configuration
provenance.json    code, versions, data fingerprint, device, kernels, command
metrics.jsonl      one row for each logged step and each evaluation
train.log          the lines that its processes printed, with the time (UTC)
routing/           the experts that a few fixed examples chose at each evaluation, where there are experts
checkpoints/       what is needed to continue
result.json        written last, in one piece: how the run ended, or that it was stopped and can continue
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.runtime.atomic_io import plain, write_json, write_text
from experiments.runtime.errors import CheckpointError
from experiments.runtime.json_state import read_model
from experiments.runtime.run_status import FINAL
from experiments.runtime.secrets import redact
from experiments.tracking.run_files import (
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
from experiments.tracking.study_folders import MISPLACED, misplacement

DAMAGED_RESULT = "remove it, and the same command continues from the last checkpoint"
LOST = "restore it, or remove the run's folder and train it again"
DAMAGED_PROVENANCE = (
    "restore it, or continue the training in a run of its own with continue_from= the run's folder"
)


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, root: Path, *, writes: bool = True) -> None:
        """``writes=False`` leaves everything as it is: of several processes one keeps the record."""
        self.root, self.writes = root, writes
        self.metrics = root / "metrics.jsonl"
        self.checkpoints = root / "checkpoints"
        self.routing = root / "routing"
        self._running: Any = None
        """Running hash of metrics.jsonl, of what was written and not of what is there."""
        self._bytes = self._rows = 0

    def result(self, *, anywhere: bool = False) -> RunResult | None:
        """Return the result, or None while the run has not ended.

        Args:
            anywhere: the folder need not lie where its run belongs, as one that was copied for its model.

        Raises:
            CheckpointError: it is damaged, or of another run than the path of the folder says.
        """
        result = read_result(self.root / "result.json", DAMAGED_RESULT)
        if result is not None and not anywhere:
            self.check_key(result.key)
        return result

    def check_key(self, key: str) -> None:
        """Raise CheckpointError if ``key``, of a file in the folder, is of another run than its path says."""
        if other := misplacement(self.root.absolute(), key):
            raise CheckpointError(f"{self.root}: {other}: {MISPLACED}")

    def provenance(self) -> Provenance | None:
        """Return provenance.json; None for a run that has not begun. Raises CheckpointError if damaged."""
        return read_model(self.root / "provenance.json", Provenance, DAMAGED_PROVENANCE)

    @property
    def key(self) -> str:
        """Return the run key, which the path says."""
        return f"{self.root.parent.name}-{self.root.name}"

    @property
    def has_final_status(self) -> bool:
        """Return True if running again would only repeat the result: complete, diverged, out of memory.

        Raises CheckpointError if the result is damaged, or a file is lost that it lists.
        """
        result = self.result()
        if result is None or result.status not in FINAL:
            return False
        absent = {name: None for name in HASHED if not (self.root / name).is_file()}
        for name in damaged_files(result, absent):
            raise CheckpointError(f"{self.root / name}: is missing: {LOST}")
        return True

    def open(self, config: dict[str, Any], provenance: Provenance) -> None:
        """Make the folder and write what is known before training."""
        if not self.writes:
            return
        self.root.mkdir(parents=True, exist_ok=True)
        write_text(self.root / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(redact(config))))
        write_json(self.root / "provenance.json", redact(provenance.tree()))
        (self.root / "result.json").unlink(missing_ok=True)
        for leftover in self.root.glob(".*.tmp"):  # of a writer that was killed; there is one at a time
            leftover.unlink(missing_ok=True)

    def log(self, row: MetricRow) -> None:
        """Append a row to metrics.jsonl."""
        if not self.writes:
            return
        line = (json.dumps(plain(row.tree()), allow_nan=False) + "\n").encode()
        self._begin_hash()
        with self.metrics.open("ab") as file:
            file.write(line)
        self._add(line)

    def metrics_record(self) -> dict[str, int | str]:
        """Return rows, bytes and hash of what was written to metrics.jsonl: each checkpoint has them."""
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
        """Return the rows of metrics.jsonl; a row half-written by a crash is left out."""
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

    def loss(self) -> float:
        """The last score on validation, of which less is better: negated where more was; else infinite."""
        result = self.result()
        scores = [row.measured for row in self.rows() if row.kind == "validation"]
        if result is None or not result.metrics or not scores:
            return math.inf
        metric = result.metrics[0]
        score = float(scores[-1].get(metric.name, math.inf))
        return -score if metric.direction == "higher" else score

    def rewind(self, step: int) -> None:
        """Drops what was recorded after ``step`` (and a row half-written by a crash): it comes again."""
        if not self.writes:
            return
        for path in self.routing.glob("step-*.safetensors"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        if not self.metrics.exists():
            return
        kept = [line + "\n" for line, row in self._lines() if row.step <= step]
        write_text(self.metrics, "".join(kept))
        self._running = None  # of what is left

    def finish(self, result: RunResult) -> None:
        """Write the result, with the hashes of the files beside it and its own."""
        if self.writes:
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
        whole = {**tree, "files": files}
        write_json(self.root / "result.json", {**whole, "checksum": checksum(whole)})
