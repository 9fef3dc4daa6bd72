"""Translates what version 0.1 stored: configurations (config.yaml) and models (model.json).

Keys, values and the modules of classes have other names since. A stored file goes through ``upgrade``
when it is read. What people type does not: they get an error that gives the new name (``renamed_key``,
``renamed_option``). All of this is for one release: version 0.3 drops it.
"""

from __future__ import annotations

import re
from typing import Any

from architectures.layers.layer_pattern import compress_pattern

ROOT = {"initial": "init_from", "fork": "continue_from"}

SECTIONS: dict[str, dict[str, str]] = {
    "optimizer": {
        "final": "min_lr_ratio",
        "decay": "decay_fraction",
        "warmup": "warmup_fraction",
        "decay_ends": "decay_end_fractions",
    },
    "trainer": {
        "tests": "extra_evaluations",
        "stop_margin": "preemption_margin_seconds",
        "hang_seconds": "step_timeout_seconds",
    },
}
"""Renamed keys of the harness's sections, from old to new."""

BACKBONES = {"tied": "tie_embeddings"}
"""Renamed keys that all backbones share."""

_MASKING = {
    "rate": "mask_probability",
    "mask_share": "mask_replace_probability",
    "random_share": "random_replace_probability",
}
CLASSES: dict[str, dict[str, str]] = {
    "MaskedLM": _MASKING,
    "SentencePairs": {**_MASKING, "changed_share": "changed_fraction"},
    "SpanCorruption": {"density": "noise_density", "mean_span": "mean_noise_span_length"},
    "Denoising": {"rate": "mask_probability", "mean_span": "poisson_lambda"},
    "UL2": {"rates": "mixture_weights"},
    "S4": {"rate": "dt_scale"},
    "BidirectionalS4": {"rate": "dt_scale"},
}
"""Renamed keys of single classes."""

NESTED: dict[str, dict[str, str]] = {"s4": {"rate": "dt_scale"}}
"""Renamed keys in the sections of a hybrid."""

_SCANS = {"portable": "torch", "compiled": "torch", "native": "cpp", "fused": "mamba_ssm"}
VALUES: dict[str, dict[str, str]] = {
    "names.backbone": {"diffusion": "masked_diffusion", "diffusion_moe": "masked_diffusion_moe"},
    "scale.axis": {"body": "non_embedding", "active_body": "active_non_embedding"},
    "device.kernels": {"portable": "torch", "native": "cpp"},
    "backbone.scan": _SCANS,
    "backbone.mamba.scan": _SCANS,
    "backbone.mamba2.scan": _SCANS,
    "backbone.gla.scan": _SCANS,
    "backbone.deltanet.scan": _SCANS,
    "backbone.gated_deltanet.scan": _SCANS,
}
"""Renamed values, by key."""

_FEEDFORWARDS = {"F": "dense", "E": "experts", "O": "none"}
PATTERNS: dict[str, dict[str, str]] = {
    "layers": {
        "A": "attention",
        "L": "local_attention",
        "H": "s4",
        "M": "mamba",
        "S": "mamba2",
        "G": "gla",
        "D": "deltanet",
        "N": "gated_deltanet",
    },
    "feedforwards": _FEEDFORWARDS,
    "encoder_feedforwards": _FEEDFORWARDS,
    "attention.layers": {"G": "global", "L": "local"},
    "positions.layers": {"P": "positional", "N": "none"},
}
"""Layer types that were letters, by key of a backbone: ``7MA+S`` is now ``[mamba*7, attention+mamba2]``."""
_LETTERS = r"([1-9]\d*)?([A-Z](?:\+[A-Z])*)"

DIVIDED = {
    "scale.target": ("targets", "scale.targets.AXIS, as in scale.axis=flops scale.targets.flops=760000")
}
"""Keys that several took the place of, by dotted key: one of these, and words for all of them."""

TARGETS = {"Diffusion": "MaskedDiffusion"}
"""Renamed classes."""

_NAMES = {
    "architectures": {
        "bidirectional": "backbones.bidirectional_ssm",
        "block_diffusion": "backbones.block_diffusion",
        "decoder": "backbones.decoder",
        "diffusion": "backbones.masked_diffusion",
        "encoder": "backbones.encoder",
        "encoder_decoder": "backbones.encoder_decoder",
        "hybrid": "backbones.hybrid",
        "linear_attention": "backbones.linear_attention",
        "mamba": "backbones.mamba",
        "mamba2": "backbones.mamba2",
        "moe": "backbones.moe",
        "s4": "backbones.s4",
    },
    "experiments.objectives": {
        "block_diffusion": "diffusion.block_diffusion",
        "causal_lm": "language_modelling.causal_lm",
        "classification": "language_modelling.classification",
        "denoising": "language_modelling.denoising",
        "masked_diffusion": "diffusion.masked_diffusion",
        "masked_lm": "language_modelling.masked_lm",
        "prefix_lm": "language_modelling.prefix_lm",
        "sentence_pairs": "language_modelling.sentence_pairs",
        "seq2seq": "language_modelling.seq2seq",
        "sequence_classification": "fine_tuning.sequence_classification",
        "similarity": "fine_tuning.sentence_similarity",
        "span_corruption": "language_modelling.span_corruption",
        "token_classification": "fine_tuning.token_classification",
        "ul2": "language_modelling.ul2",
    },
    "experiments.tasks": {
        "chained_recall": "recall.chained_recall",
        "compositional_recall": "recall.compositional_recall",
        "context_free": "formal.context_free",
        "context_sensitive": "formal.context_sensitive",
        "copying": "probes.copying",
        "forgetting_recall": "recall.forgetting_recall",
        "fuzzy_recall": "recall.fuzzy_recall",
        "images": "long_range.images",
        "in_context_recall": "recall.in_context_recall",
        "induction": "probes.induction",
        "infilling": "probes.infilling",
        "listops": "long_range.listops",
        "memorization": "recall.memorization",
        "needle": "probes.needle",
        "ngram_lookup": "recall.ngram_lookup",
        "pairs": "text.text_pairs",
        "pathfinder": "long_range.pathfinder",
        "phone_book": "recall.phone_book",
        "recall": "recall.mqar",
        "regular": "formal.regular",
        "sentences": "text.sequence_classification",
        "similarity": "text.sentence_similarity",
        "tags": "text.token_classification",
        "text": "text.text",
        "text_source": "long_range.text_source",
        "word_problem": "formal.word_problem",
    },
}

_MODULES = {
    f"{package}.{old}": f"{package}.{new}" for package, names in _NAMES.items() for old, new in names.items()
}
"""From the module that a stored ``_target_`` may name to the one that holds the class now."""


def upgrade(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a stored configuration, or the content of a model.json, in the words of this version.

    Some sections of a configuration are enough. A tree of this version comes back as it is.
    """
    new = _renamed(tree, ROOT)
    for name, keys in SECTIONS.items():
        if isinstance(new.get(name), dict):
            new[name] = _renamed(new[name], keys)
    for name in ("backbone", "objective", "task"):
        if isinstance(new.get(name), dict):
            new[name] = _part(new[name], BACKBONES if name == "backbone" else {})
    if isinstance(new.get("backbone"), dict):
        new["backbone"] = _named_layers(new["backbone"])
    for key, values in VALUES.items():
        new = _revalued(new, key, values)
    if isinstance(new.get("name"), str):  # a model.json
        new["name"] = VALUES["names.backbone"].get(new["name"], new["name"])
    return new


def _renamed(section: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    """Return a section with its keys renamed, in the same order. A key whose new name is there too stays."""
    return {key if keys.get(key, key) in section else keys[key]: value for key, value in section.items()}


def _revalued(section: dict[str, Any], key: str, values: dict[str, str]) -> dict[str, Any]:
    """Return a section with the value at a dotted key renamed, where there is one."""
    name, _, rest = key.partition(".")
    held = section.get(name)
    if rest:
        return {**section, name: _revalued(held, rest, values)} if isinstance(held, dict) else section
    return {**section, name: values.get(held, held)} if isinstance(held, str) else section


def _part(section: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    """Return the section of a backbone, an objective or a task in the words of this version."""
    if "_target_" not in section:
        return _renamed(section, keys)
    target = upgrade_target(str(section["_target_"]))
    new = _renamed({**section, "_target_": target}, {**keys, **CLASSES.get(target.rpartition(".")[2], {})})
    for name, inner in NESTED.items():
        if isinstance(new.get(name), dict):
            new[name] = _renamed(new[name], inner)
    return new


def _named_layers(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the section of a backbone with names for the letters of its layer patterns."""
    new: dict[str, Any] = {
        key: renamed_pattern(prefix + key, value) or value for key, value in section.items()
    }
    for part in ("attention", "positions"):
        if not prefix and isinstance(new.get(part), dict):
            new[part] = _named_layers(new[part], f"{part}.")
    return new


def renamed_pattern(key: str, value: Any) -> list[str] | None:
    """Return the layer types that a pattern of letters stood for; None for what is no such pattern.

    Args:
        key: of the backbone, such as ``attention.layers``.
        value: its value, such as ``LLG``.
    """
    if key not in PATTERNS or not isinstance(value, str) or not re.fullmatch(f"(?:{_LETTERS})+", value):
        return None
    types = PATTERNS[key]
    layers: list[str] = []
    for count, letters in re.findall(_LETTERS, value):
        if not set(letters.split("+")) <= set(types):
            return None
        layers += ["+".join(types[letter] for letter in letters.split("+"))] * int(count or 1)
    return compress_pattern(layers)


def upgrade_target(target: str) -> str:
    """Return the dotted path of a class as it is now; paths that did not change come back as they are."""
    module, _, name = target.rpartition(".")
    if module not in _MODULES:
        return target
    return f"{_MODULES[module]}.{TARGETS.get(name, name)}"


def renamed_key(key: str, known: set[str]) -> str | None:
    """Return the new name of a dotted key of version 0.1; None where it has none among ``known``.

    Args:
        key: as it was typed, such as ``trainer.tests``.
        known: names of the keys that are there beside it.
    """
    parent, _, leaf = key.rpartition(".")
    tables = [ROOT] if not parent else [SECTIONS.get(parent, {}), NESTED.get(parent.rpartition(".")[2], {})]
    if key in DIVIDED and DIVIDED[key][0] in known:
        return DIVIDED[key][1]
    if parent == "backbone":
        tables.append(BACKBONES)
    if parent in ("backbone", "objective"):
        tables += CLASSES.values()
    for table in tables:
        if table.get(leaf) in known:
            return f"{parent}.{table[leaf]}".lstrip(".")
    return None


def renamed_option(key: str, value: str) -> str | None:
    """Return the new name of a value of version 0.1, such as ``body`` of ``scale.axis``, or None.

    The YAML files of a group are options of the group: ``diffusion`` of ``backbone``.
    """
    return VALUES.get(f"names.{key}", VALUES.get(key, {})).get(value)
