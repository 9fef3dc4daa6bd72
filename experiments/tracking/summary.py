"""The part of a run folder that is mirrored: its small files, and values derived from its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.runtime.atomic_io import plain
from experiments.runtime.secrets import redact
from experiments.runtime.yaml_state import parse_yaml

FILES = ("config.yaml", "provenance.json", "metrics.jsonl", "result.json")
"""The small files of a run folder: all that analysis reads of a run without experts."""
COSTS = (
    "flops", "tokens", "seconds", "device_seconds", "tokens_per_second", "peak_memory_bytes", "epochs",
    "skipped_steps", "loss_spikes",
)  # fmt: skip
"""Keys of ``training`` in result.json that say what a run cost and how it went."""


def safe_texts(folder: Path) -> dict[str, str]:
    """The text of each of ``FILES`` that is there, without secrets; rows are numbers and stay as they are."""
    found = {}
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            text = json.dumps(plain(redact(json.loads(text))), indent=1, allow_nan=False) + "\n"
        elif path.suffix == ".yaml":
            text = OmegaConf.to_yaml(OmegaConf.create(redact(parse_yaml(text))))
        found[name] = text
    return found


def outcome(result: dict[str, Any]) -> dict[str, Any]:
    """Return scores, cost and status of a result under short names, the most important first.

    Args:
        result: the fields of result.json.
    """
    scores: dict[str, Any] = {}
    for metric in result.get("metrics", []):
        name = f"metrics/{metric['split']}/{metric['name']}"
        scores[name] = metric["value"]
        if len(scores) == 1 and metric.get("standard_error") is not None:
            scores[f"{name}/standard_error"] = metric["standard_error"]
    training = result.get("training") or {}
    cost = {f"training/{name}": training[name] for name in COSTS if training.get(name) is not None}
    status = {name: result[name] for name in ("status", "message") if result.get(name) is not None}
    return {**status, **dict(list(scores.items())[:2]), **cost, **scores}


def derived(record: dict[str, Any], provenance: dict[str, Any]) -> dict[str, Any]:
    """Return values derived from a run's configuration, as they are shown beside it.

    Args:
        record: the fields of result.json that are known before training, or all of them.
        provenance: the fields of provenance.json.
    """
    planned, parameters = record.get("planned") or {}, record.get("parameters") or {}
    ratio = planned["tokens"] / parameters["total"] if planned and parameters.get("total") else None
    names = ("key", "study", "cell", "digest", "seed", "backbone", "objective", "task", "scale", "initial")
    costs = ("parameters", "flops_per_token", "state_bytes_2k", "matched", "setup", "widths", "planned")
    sources = ("device", "kernels", "versions", "git")
    return {
        **{name: record[name] for name in (*names, *costs, "fingerprint") if name in record},
        "tokens_per_parameter": ratio,
        **{name: provenance[name] for name in sources if name in provenance},
    }
