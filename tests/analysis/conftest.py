"""Writes synthetic run folders, as the harness would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.report.page import Figures
from tests import ROOT
from tests.results import write_result

WriteRun = Callable[..., Path]

METRICS = {
    "text": ("bits_per_byte", "bits/byte", "lower"),
    **dict.fromkeys(("recall", "copying", "induction"), ("answer_accuracy", "share", "higher")),
}
REFERENCES = {
    "text": [
        {"name": "unigram entropy", "metric": "bits_per_byte", "value": 4.7, "note": "order 0"},
        {"name": "xz", "metric": "bits_per_byte", "value": 2.2, "note": ""},
    ],
    "recall": [{"name": "any value", "metric": "answer_accuracy", "value": 0.03125, "note": "chance"}],
    "copying": [],
    "induction": [],
}


def write_run_folder(
    runs: Path,
    backbone: str,
    seed: int,
    score: float | None = 2.4,
    *,
    study: str = "compare",
    task: str = "text",
    objective: str = "causal_lm",
    likelihood: str | None = "exact",
    status: str = "complete",
    message: str | None = None,
    digest: str = "ab12cd34",
    state_bytes: int = 65536,
    fingerprint: str = "data-1",
    commit: str = "c0ffee",
    code: dict[str, str] | None = None,
    processor: str = "p",
    kernel: str = "sdpa",
    threads: int = 1,
    matched: dict[str, Any] | str | None = "default",
    killed: bool = False,
    tail: str = "",
) -> Path:
    """One run folder. ``killed`` leaves out result.json; ``tail`` is added to metrics.jsonl as it is."""
    metric, unit, direction = METRICS[task]
    cell = f"{backbone}-{objective}-{task}-nano"
    folder = runs / study / f"{cell}-{digest}" / f"s{seed}"
    folder.mkdir(parents=True)
    (folder / "provenance.json").write_text(
        json.dumps(
            {
                "key": f"{cell}-{digest}-s{seed}",
                "git": {"commit": commit, "dirty": False, "code": str(sorted((code or {}).items()))},
                "code": code or {},
                "versions": {"torch": "2.10", "python": "3.11"},
                "data": {"task": task, "fingerprint": fingerprint},
                "device": {"name": "cpu", "processor": processor, "threads": threads, "precision": "fp32"},
                "kernels": {"attention": kernel},
                "command": "archbench train study=compare",
                "overrides": [f"study={study}", f"backbone={backbone}", f"seed={seed}"],
                "resume": {"sittings": 1, "exact": True, "changed": {}},
            }
        )
    )
    rows: list[dict[str, Any]] = []
    level = 0.5 if score is None else score
    for step in range(10, 60, 10):
        seconds = step / 10 + seed / 7
        common = {"step": step, "tokens": step * 4096, "flops": step * 1e10}
        common |= {"seconds": seconds, "device_seconds": seconds}
        loss: Any = "nan" if status == "diverged" and step > 30 else 3.0 / step + seed / 1000
        rows.append({"kind": "train", **common, "loss": loss, "learning_rate": 1e-3})
        rows.append({"kind": "validation", **common, metric: level * (1 + 1 / step)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + tail)
    if killed:
        return folder
    result: dict[str, Any] = {
        "format": 1, "status": status, "message": message, "key": f"{cell}-{digest}-s{seed}",
        "study": study, "cell": cell, "digest": digest, "seed": seed,
        "backbone": backbone, "objective": objective, "task": task, "scale": "nano",
        "references": REFERENCES[task], "fingerprint": fingerprint,
        "matched": {"axis": "body parameters", "target": 200000, "residual": 0.003}
        if matched == "default" else matched,
    }  # fmt: skip
    if status == "complete":
        result |= {
            "parameters": {"embedding": 8000, "body": 200600, "head": 0, "total": 208600, "active": 208600},
            "flops_per_token": 1.3e6,
            "state_bytes_2k": state_bytes,
            "training": {
                "steps": 50, "tokens": 204800, "flops": 5e11, "seconds": 5.0 + seed,
                "tokens_per_second": 40960.0, "data_share": 0.004, "peak_memory_bytes": 500 * 2**20,
            },
            "validation": [{"name": metric, "split": "validation", "value": level * (1 + 1 / 50)}],
            "metrics": [
                {
                    "name": metric, "split": "test", "value": score, "unit": unit, "direction": direction,
                    "averaging": "micro: over bytes", "likelihood": likelihood if task == "text" else None,
                    "estimator": "chain rule", "samples": 1, "standard_error": 0.01, "items": 256,
                }
            ],
        }  # fmt: skip
    write_result(folder, result)
    return folder


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """``write_run(backbone, seed, score, ...)`` writes one run folder under ``tmp_path / "runs"``."""

    def write(*args: Any, **kwargs: Any) -> Path:
        return write_run_folder(tmp_path / "runs", *args, **kwargs)

    return write


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``archbench compare`` draw no figure of its page, which takes seconds."""
    pages = "".join(path.read_text() for path in (ROOT / "analysis" / "report" / "templates").iterdir())
    empty = Figures(interactive=dict.fromkeys(re.findall(r"plots\.(\w+)", pages)), ladders={}, laws={})
    monkeypatch.setattr("archbench.analysis.compare.draw", lambda comparison: empty)


@pytest.fixture
def study(write_run: WriteRun, tmp_path: Path) -> Path:
    """A study with every kind of run; returns the folder of all studies."""
    for seed, noise in enumerate((0.00, 0.01, -0.008)):
        write_run("decoder", seed, 2.40 + noise)
        write_run("mamba", seed, 2.41 + 0.9 * noise + seed * 0.001)
        write_run("s4", seed, 2.70 + noise + seed * 0.002)
        bound = {"objective": "masked_diffusion", "likelihood": "bound", "state_bytes": 0}
        write_run("diffusion", seed, 2.95 + noise, **bound)
        pseudo = {"objective": "masked_lm", "likelihood": "pseudo", "state_bytes": 0}
        write_run("encoder", seed, 1.10 + noise, **pseudo)
        write_run("decoder", seed, 0.99 + noise, task="recall")
        write_run("mamba", seed, 0.90 + 2 * noise, task="recall")
        write_run("encoder", seed, 0.70 + noise * noise, task="recall", objective="masked_lm", state_bytes=0)
        write_run("s4", seed, None, task="recall", status="diverged", message="loss is nan at step 40")
    write_run("moe", 0, 2.39)
    write_run("moe", 1, None, status="oom", message="asked for 9 GiB,\n8 GiB were free")
    write_run("moe", 2, killed=True, tail='{"kind": "train", "st')
    return tmp_path / "runs"
