"""The digest of a run: a hash of the settings that decide its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

RESULT_TRAINER = (
    "validation_examples",
    "test_examples",
    "evaluate_every",
    "extra_evaluations",
    "non_finite",
)
"""Settings of the trainer that decide a result."""


def result_settings(resolved: dict[str, Any], unused: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of a configuration that decide a run's result.

    Options that are null or false are left out, so that a new option that is off by default does not change
    the digests of stored runs. The seed and the initial weights are left out, too: the caller adds the
    fingerprint of the weights.

    Args:
        resolved: the configuration.
        unused: sections of the backbone that this model does not use (``BackboneConfig.unused_sections``).
    """
    excluded = ("seed", "runs", "tracking", "study", "names", "parallel", "init_from", "continue_from")
    kept = {k: v for k, v in resolved.items() if k not in excluded}
    kept["backbone"] = {k: v for k, v in kept["backbone"].items() if k not in unused}
    kept["task"] = {k: v for k, v in kept["task"].items() if k != "cache_dir"}
    kept["device"] = {"precision": kept["device"]["precision"]}
    kept["budget"] = {k: v for k, v in kept["budget"].items() if k != "micro_batch_size"}
    kept["trainer"] = {k: v for k, v in kept["trainer"].items() if k in RESULT_TRAINER}
    return _without_modules(_without_options_off(kept))


def _without_options_off(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a tree of settings without those that are null or false."""
    return {
        key: _without_options_off(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None and value is not False
    }


def _without_modules(value: Any) -> Any:
    """Return the settings with each class named without its module, which may change."""
    if isinstance(value, dict):
        settings = {k: _without_modules(v) for k, v in value.items()}
        if "_target_" in settings:
            settings["_target_"] = str(settings["_target_"]).rpartition(".")[2]
        return settings
    return [_without_modules(v) for v in value] if isinstance(value, list) else value


def settings_digest(settings: dict[str, Any]) -> str:
    """Return eight hexadecimal digits that identify settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
