"""The digest of a run: what of its configuration decides the result, hashed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from experiments.config.optimizer import ADAMW

RESULT_TRAINER = (
    "validation_examples",
    "test_examples",
    "evaluate_every",
    "extra_evaluations",
    "non_finite",
)
"""Settings of the trainer that decide a result."""

PLAIN_MULTIPLIERS: dict[str, Any] = {
    **dict.fromkeys(("embedding", "head", "attention_in", "attention_out", "key"), 1.0),
    **dict.fromkeys(("mamba2_in", "mamba2_out", "gate", "down"), 1.0),
    "mamba2_parts": [1.0] * 5,
}
"""Constant factors of the layers of a hybrid that change nothing."""

_S4 = {
    "dt_transform": "exp",
    "dt_rate_cap": 0.001,
    "num_systems": None,
    "B": "ones",
    "B_clip": None,
    "D": "ones",
    "C_length": None,
}
"""Settings of an S4 layer that came later."""

ADDED: dict[str, dict[str, Any]] = {
    "backbone": {
        "experts.balance_counts": "chosen",
        "experts.jitter_experts": False,
        "multipliers": PLAIN_MULTIPLIERS,
        "positions.by_layer": False,
        "positions.scale_local": True,
        "positions.scaling.truncate": True,
        "feedforward.limit": None,
        "experts.bias": False,
        "attention.output_gate": False,
        "num_value_heads": None,
        "encoder_heads": None,
        "encoder_d_ff": None,
        "gated_deltanet.num_value_heads": None,
        **_S4,
        **{f"s4.{key}": value for key, value in _S4.items()},
        **{f"{part}selection_norm_weight": True for part in ("", "mamba.")},
        **{f"{part}selection_norm_eps": None for part in ("", "mamba.")},
    },
    "objective": {"average": "tokens", "every_token": False, "pooling": "answer", "real_values": False},
    "task": {
        "train_examples": None,
        "as_published": False,
        "random_filler": False,
        "show_answers": False,
    },
    "trainer": {"non_finite": "stop"},
    "optimizer": {"_target_": ADAMW, "mup_base_width": None, "decay_end_fractions": [1.0]},
}
"""Settings that came later, by section and dotted key, with the value that means what there was before.

With this value they stay out of a digest, so that the digests of stored configurations do not change."""

LATER_MIXERS = ("mlstm",)
"""Mixers of a hybrid that came later: their settings stay out of a digest where no layer is of this type."""


def result_settings(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration that decide a run's result.

    The seed and the weights that training starts from are left out: the caller adds the weights' fingerprint.
    """
    beside = ("seed", "runs", "tracking", "study", "names", "parallel", "init_from", "continue_from")
    kept = {k: v for k, v in resolved.items() if k not in beside}
    kept["task"] = {k: v for k, v in kept["task"].items() if k != "cache_dir"}
    kept["device"] = {"precision": kept["device"]["precision"]}
    kept["budget"] = {k: v for k, v in kept["budget"].items() if k != "micro_batch_size"}
    kept["trainer"] = {k: v for k, v in kept["trainer"].items() if k in RESULT_TRAINER}
    types = " ".join(kept["backbone"].get("layers", []))
    absent = [name for name in LATER_MIXERS if name not in types]
    kept["backbone"] = {k: v for k, v in kept["backbone"].items() if k not in absent}
    for section, plain in ADDED.items():
        kept[section] = _without_plain(kept[section], plain)
    return _without_modules(kept)


def _without_plain(section: dict[str, Any], plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a section without the settings that have their value of ``plain``, by dotted key."""
    return {
        key: _without_plain(value, plain, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in section.items()
        if prefix + key not in plain or value != plain[prefix + key]
    }


def _without_modules(value: Any) -> Any:
    """Return the settings with each class named without its module, which may change."""
    if isinstance(value, dict):
        own = {k: _without_modules(v) for k, v in value.items()}
        return {**own, "_target_": str(own["_target_"]).rpartition(".")[2]} if "_target_" in own else own
    return [_without_modules(v) for v in value] if isinstance(value, list) else value


def settings_digest(settings: dict[str, Any]) -> str:
    """Return eight hexadecimal digits that identify settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
