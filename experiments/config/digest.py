"""The digest of a run: what of its configuration decides the result, hashed."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def result_settings(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration that decide a run's result.

    The seed and the weights that training starts from are left out: the caller adds the weights' fingerprint.
    """
    beside = ("seed", "runs", "tracking", "study", "names", "parallel", "init_from", "continue_from")
    kept = {k: v for k, v in resolved.items() if k not in beside}
    fresh = ("train_examples", None)  # as before there was a choice
    kept["task"] = {k: v for k, v in kept["task"].items() if k != "cache_dir" and (k, v) != fresh}
    kept["device"] = {"precision": kept["device"]["precision"]}
    kept["budget"] = {k: v for k, v in kept["budget"].items() if k != "micro_batch_size"}
    sizes = ("validation_examples", "test_examples", "evaluate_every", "extra_evaluations")
    trainer = {k: v for k, v in kept["trainer"].items() if k in sizes}
    if kept["trainer"].get("non_finite", "stop") != "stop":  # else as before there was a choice
        trainer["non_finite"] = kept["trainer"]["non_finite"]
    plain = {"mup_base_width": None, "decay_end_fractions": [1.0]}  # as before there was a choice
    optimizer = {k: v for k, v in kept["optimizer"].items() if k not in plain or v != plain[k]}
    return _without_modules({**kept, "trainer": trainer, "optimizer": optimizer})


def _without_modules(value: Any) -> Any:
    """Return the settings with each class named without its module, which may change."""
    if isinstance(value, dict):
        own = {k: _without_modules(v) for k, v in value.items()}
        return {**own, "_target_": str(own["_target_"]).rpartition(".")[2]} if "_target_" in own else own
    return [_without_modules(v) for v in value] if isinstance(value, list) else value


def settings_digest(settings: dict[str, Any]) -> str:
    """Return eight hexadecimal digits that identify settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
