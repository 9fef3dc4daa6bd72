"""The run folder: all files of one run. Its path is a function of the configuration, never of the clock.

config.yaml        the resolved configuration
provenance.json    code, versions, data fingerprint, device, kernels, command
metrics.jsonl      one row for each logged step and each evaluation
train.log          the lines that its processes printed, with the time (UTC)
routing/           the experts that a few fixed examples chose at each evaluation, where there are experts
checkpoints/       what is needed to continue
result.json        written last, in one piece; its presence says that the run has ended, and how
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.runtime.atomic_io import NOT_FINITE, plain, write_json, write_text
from experiments.runtime.run_status import FINAL
from experiments.runtime.secrets import redact


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, root: Path, *, writes: bool = True) -> None:
        """``writes=False`` leaves everything as it is: of several processes one keeps the record."""
        self.root, self.writes = root, writes
        self.metrics = root / "metrics.jsonl"
        self.checkpoints = root / "checkpoints"
        self.routing = root / "routing"

    def result(self) -> dict[str, Any] | None:
        """The result, or None while the run has not ended."""
        path = self.root / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def provenance(self) -> dict[str, Any]:
        """Return the content of provenance.json; empty for a run that has not begun."""
        path = self.root / "provenance.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def finished(self) -> bool:
        """Return True if running again would only repeat the result: complete, diverged, out of memory."""
        result = self.result()
        return result is not None and result.get("status") in FINAL

    def open(self, config: dict[str, Any], provenance: dict[str, Any]) -> None:
        """Make the folder and write what is known before training."""
        if not self.writes:
            return
        self.root.mkdir(parents=True, exist_ok=True)
        write_text(self.root / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(redact(config))))
        write_json(self.root / "provenance.json", provenance)
        (self.root / "result.json").unlink(missing_ok=True)

    def log(self, row: dict[str, Any]) -> None:
        """Appends one row to metrics.jsonl."""
        if not self.writes:
            return
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(row), allow_nan=False) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl as they were logged; a row half-written by a crash is left out."""
        if not self.metrics.exists():
            return []
        found = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            found.append({k: float(v) if v in NOT_FINITE else v for k, v in row.items()})
        return found

    def sync(self) -> None:
        """Sync metrics.jsonl to disk, so that its rows survive a crash of the machine."""
        if self.writes and self.metrics.exists():
            with self.metrics.open("rb") as file:
                os.fsync(file.fileno())

    def has_row(self, kind: str, step: int) -> bool:
        """Return True if metrics.jsonl has a row of this kind for a step."""
        if not self.metrics.exists():
            return False
        rows = map(json.loads, self.metrics.read_text(encoding="utf-8").splitlines())
        return any(row["kind"] == kind and row["step"] == step for row in rows)

    def loss(self) -> float:
        """The last score on validation, of which less is better: negated where more was; else infinite."""
        metrics = (self.result() or {}).get("metrics") or []
        lines = self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else []
        scores = [row for row in map(json.loads, lines) if row["kind"] == "validation"]
        if not metrics or not scores:
            return math.inf
        score = float(scores[-1][metrics[0]["name"]])
        return -score if metrics[0]["direction"] == "higher" else score

    def rewind(self, step: int) -> None:
        """Drops what was recorded after ``step`` (and a row half-written by a crash): it comes again."""
        if not self.writes:
            return
        for path in self.routing.glob("step-*.safetensors"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row["step"] <= step:
                kept.append(line + "\n")
        write_text(self.metrics, "".join(kept))

    def finish(self, result: dict[str, Any]) -> None:
        """Writes the result."""
        if self.writes:
            write_json(self.root / "result.json", result)
