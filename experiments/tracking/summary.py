"""The part of a run folder that is mirrored: its small files, and values derived from its configuration."""

from __future__ import annotations

import json
from pathlib import Path

from omegaconf import OmegaConf

from experiments.runtime.atomic_io import plain
from experiments.runtime.secrets import redact
from experiments.runtime.yaml_state import parse_yaml
from experiments.tracking.run_files import Provenance, RunResult

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


def outcome(result: RunResult) -> dict[str, str | float]:
    """Return scores, cost and status of a result under short names, the most important first, no secrets."""
    scores: dict[str, str | float] = {}
    for metric in result.metrics:
        name = f"metrics/{metric.split}/{metric.name}"
        scores[name] = metric.value
        if len(scores) == 1:
            scores[f"{name}/standard_error"] = metric.standard_error
    training = {} if result.training is None else result.training.tree()
    cost = {f"training/{name}": training[name] for name in COSTS if training.get(name) is not None}
    status: dict[str, str | float] = {"status": str(result.status)}
    if result.message is not None:
        status["message"] = redact(result.message)
    return {**status, **dict(list(scores.items())[:2]), **cost, **scores}


KNOWN_BEFORE = (
    "key", "study", "cell", "digest", "seed", "backbone", "objective", "task", "scale", "initial",
    "parameters", "flops_per_token", "state_bytes_2k", "matched", "setup", "widths", "planned", "fingerprint",
)  # fmt: skip
"""Fields of result.json that are known before training."""


def derived(result: RunResult, provenance: Provenance | None) -> dict[str, object]:
    """Return values derived from a run's configuration, as they are shown beside it.

    Args:
        result: of the run, or what is known of it before training.
        provenance: of the run, once it has begun.
    """
    ratio = None
    if result.planned is not None and result.parameters is not None and result.parameters.total:
        ratio = result.planned.tokens / result.parameters.total
    known = result.model_dump(exclude_unset=True, include={*KNOWN_BEFORE})
    sources = {} if provenance is None else provenance.tree()
    return {
        **known,
        "tokens_per_parameter": ratio,
        **{name: sources[name] for name in ("device", "kernels", "versions", "git") if name in sources},
    }
