"""Results and rows of metrics as a run writes them, with usual values for what a test does not name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archbench.experiments.tracking.run_files import EvaluationRow, RunResult, TrainRow
from archbench.experiments.tracking.run_folder import RunFolder

METRIC = {
    "name": "bits_per_byte", "split": "test", "unit": "bits/byte", "direction": "lower",
    "averaging": "micro: over bytes", "likelihood": "exact", "estimator": "chain rule", "samples": 1,
    "standard_error": 0.01, "items": 256,
}  # fmt: skip
TRAINING = {
    "steps": 50, "tokens": 204800, "flops": 5e11, "epochs": None, "seconds": 5.0, "device_seconds": 5.0,
    "tokens_per_second": 40960.0, "compile_seconds": 0.0, "data_share": 0.004, "peak_memory_bytes": 2**29,
    "micro_batch_size": 32, "skipped_steps": 0, "loss_spikes": 0,
}  # fmt: skip
SETUP = {
    "d_model": 64, "num_layers": 2, "num_heads": 4, "d_state": None, "batch_size": 32, "sequence_length": 128,
    "learning_rate": 0.001,
}  # fmt: skip
SECTIONS: dict[str, dict[str, Any]] = {
    "training": TRAINING,
    "setup": SETUP,
    "matched": {"axis": "flops", "target": 200000, "value": 200600, "residual": 0.003, "note": None},
    "planned": {"steps": 50, "tokens": 204800, "flops": 5e11},
    "parameters": {"embedding": 8000, "body": 200600, "head": 0, "total": 208600, "active": 208600},
    "resume": {"sittings": 1, "exact": True, "changed": {}},
}
RUN = {"format": 1, "backbone": "decoder", "objective": "causal_lm", "task": "text", "scale": "nano"}


def write_result(folder: Path, record: Mapping[str, Any]) -> None:
    """Write a record, which may be an edited one, into a folder ``STUDY/CELL-DIGEST/sSEED``."""
    RunFolder(folder).write_result(named(folder, record))


def result(record: Mapping[str, Any]) -> RunResult:
    """Return a record as a result, of the run ``decoder-text-nano-ab12cd34-s0`` where it names none."""
    return RunResult.model_validate(named(Path("mine/decoder-text-nano-ab12cd34/s0"), record))


def row(kind: str, step: int, **measured: Any) -> dict[str, Any]:
    """Return a row of metrics.jsonl."""
    axes = {"tokens": 64 * step, "flops": 1e9 * step, "seconds": step / 2, "device_seconds": step / 2}
    usual = dict.fromkeys(("loss", "learning_rate", "grad_norm", "tokens_per_second", "data_share"), 0.5)
    return {"kind": kind, "step": step, **axes, **(usual if kind == "train" else {}), **measured}


def metric_row(kind: str, step: int, **measured: Any) -> TrainRow | EvaluationRow:
    """Return a row of metrics.jsonl as the model that is logged."""
    model = TrainRow if kind == "train" else EvaluationRow
    return model.model_validate(row(kind, step, **measured))


def named(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without hashes, with what it does not name: its run, by its path, and usual values."""
    cell, _, digest = folder.parent.name.rpartition("-")
    seed = folder.name.removeprefix("s")
    run = {
        **RUN, "key": RunFolder(folder).key, "study": folder.parents[1].name, "cell": cell,
        "digest": digest, "seed": int(seed) if seed.isdecimal() else 0, "status": "complete",
    }  # fmt: skip
    tree = {**run, **{key: record[key] for key in record if key not in ("files", "checksum")}}
    for name, usual in SECTIONS.items():
        if isinstance(tree.get(name), dict):
            tree[name] = usual | tree[name]
    for name in ("metrics", "validation"):
        if isinstance(tree.get(name), list):
            tree[name] = [METRIC | metric for metric in tree[name]]
    return tree
