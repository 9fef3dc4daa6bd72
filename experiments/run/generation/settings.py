"""The settings of generation that a Hugging Face folder brings: generation_config.json."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from archbench.experiments.data.tokenizers.folder_vocabulary import generation_ids, read_json
from archbench.experiments.objectives.decoding.beam_search import BeamConfig
from archbench.experiments.objectives.decoding.sampling import GREEDY, Constraints, SamplingConfig
from archbench.experiments.runtime.errors import ConfigError

MOST_TOKENS = 200
"""Tokens generated where neither the folder nor the command sets a number."""
FILE = "generation_config.json"
DRAWING = ("temperature", "top_k", "top_p", "min_p")
"""Settings that matter where tokens are drawn."""
COUNTS = {
    "max_new_tokens": 1,
    "max_length": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "top_k": 0,
}
"""Whole numbers, and their least values."""
LARGEST = 2**31 - 1
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty")
EARLY_STOPPING = {True: "full", False: "heuristic", "never": "never"}
"""Their values and ours."""
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "top_h": (),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "guidance_scale": (1.0,),
    "bad_words_ids": (),
    "force_words_ids": (),
    "constraints": (),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "stop_strings": (),
}
"""Settings there that change a text and do not exist here, with the values that change nothing."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """The settings of a folder, where it has any; the defaults are those of our runs."""

    max_tokens: int | None = None
    """Most tokens generated; None where the folder does not say."""
    max_length: int | None = None
    """The same with the prompt included; the folder gives one of the two at most."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    drawn: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling where the person asks for it and the folder decodes greedily."""
    beam: BeamConfig = field(default_factory=lambda: BeamConfig(num_beams=1))
    constraints: Constraints = field(default_factory=Constraints)

    def most_tokens(self, prompt: int, continues: bool) -> int:
        """Return the limit for prompts of this length, which count where a decoder continues them."""
        if self.max_length is None:
            return self.max_tokens or MOST_TOKENS
        return max(self.max_length - (prompt if continues else 1), 1)


def read_generation_settings(folder: Path) -> GenerationSettings:
    """Return the settings of a Hugging Face folder: greedy decoding, unless its files say otherwise.

    Without generation_config.json they are in config.json, as in older folders.

    Raises:
        ConfigError: a setting has no counterpart here, or a value is impossible.
    """
    file = folder / FILE
    found = file if file.is_file() else folder / "config.json"
    hf = {key: value for key, value in read_json(found).items() if value is not None}
    _check(found, hf)
    # The library draws from the 50 best tokens, unless it is told otherwise.
    drawing: dict[str, Any] = {"top_k": 50} | {key: hf[key] for key in DRAWING if key in hf}
    drawing["top_k"] = drawing["top_k"] or None
    penalty: dict[str, Any] = {"repetition_penalty": float(hf.get("repetition_penalty", 1.0))}
    try:
        drawn = SamplingConfig(**drawing, **penalty)
        greedy = dataclasses.replace(GREEDY, **penalty)
        return GenerationSettings(
            max_tokens=hf.get("max_new_tokens"),
            max_length=None if "max_new_tokens" in hf else hf.get("max_length"),
            sampling=drawn if hf.get("do_sample") else greedy,
            drawn=drawn,
            beam=BeamConfig(
                num_beams=hf.get("num_beams", 1),
                length_penalty=float(hf.get("length_penalty", 1.0)),
                early_stopping=EARLY_STOPPING[hf.get("early_stopping", False)],
            ),
            constraints=_constraints(folder, hf),
        )
    except ValueError as error:
        raise ConfigError(f"{found}: {error}") from None


def _check(file: Path, hf: dict[str, Any]) -> None:
    """Raise ConfigError for a value of the wrong type, or a setting that has no counterpart here."""
    for key, least in COUNTS.items():
        value = hf.get(key, least)
        if type(value) is not int or not least <= value <= LARGEST:
            raise ConfigError(f"{file}: {key}={value!r} must be a whole number from {least} to {LARGEST}")
    for key in NUMBERS:
        value = hf.get(key, 1.0)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ConfigError(f"{file}: {key}={value!r} must be a number")
    if type(hf.get("do_sample", False)) is not bool:
        raise ConfigError(f"{file}: do_sample={hf['do_sample']!r} must be true or false")
    if hf.get("early_stopping", False) not in (True, False, "never"):
        raise ConfigError(f"{file}: early_stopping={hf['early_stopping']!r} must be true, false or 'never'")
    for key, harmless in UNSUPPORTED.items():
        if key in hf and hf[key] not in harmless:
            raise ConfigError(f"{file}: {key}={hf[key]!r} is not supported: take it out to generate without")


def _constraints(folder: Path, hf: dict[str, Any]) -> Constraints:
    first = generation_ids(folder, "forced_bos_token_id")
    return Constraints(
        no_repeat_ngram_size=hf.get("no_repeat_ngram_size", 0),
        min_length=hf.get("min_length", 0),
        min_new_tokens=hf.get("min_new_tokens", 0),
        forced_bos_token_id=first[0] if first else None,
        forced_eos_token_id=generation_ids(folder, "forced_eos_token_id"),
        suppress_tokens=generation_ids(folder, "suppress_tokens"),
        begin_suppress_tokens=generation_ids(folder, "begin_suppress_tokens"),
    )


class Overrides:
    """Changes to settings. One that is null stays as the folder has it."""

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that are not null, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class SamplingOverrides(Overrides):
    """Sampling settings; see ``SamplingConfig``."""

    temperature: float | None = None
    """Logits are divided by it; 0 takes the most likely token."""
    top_k: int | None = None
    """Keep the k most likely tokens."""
    top_p: float | None = None
    """Keep the fewest tokens whose probabilities reach p."""
    min_p: float | None = None
    """Keep tokens at least this fraction as likely as the best."""
    repetition_penalty: float | None = None
    """Above 1 makes tokens of prompt and text less likely."""

    def apply(self, settings: GenerationSettings) -> SamplingConfig:
        """Return the sampling settings: drawn where a setting of drawing is given. Raises ConfigError."""
        base = settings.drawn if set(self.changes) & set(DRAWING) else settings.sampling
        return _replaced(base, self.changes, "sampling")


@dataclass(frozen=True, kw_only=True)
class BeamOverrides(Overrides):
    """Settings of beam search; see ``BeamConfig``."""

    num_beams: int | None = None
    """Hypotheses that run at once; 1 searches for nothing."""
    length_penalty: float | None = None
    """Scores are divided by length to this power."""
    early_stopping: str | None = None
    """``full``, ``heuristic`` or ``never``."""

    def apply(self, settings: GenerationSettings) -> BeamConfig:
        """Return the settings of the search. Raises ConfigError."""
        return _replaced(settings.beam, self.changes, "beam")


@dataclass(frozen=True, kw_only=True)
class ConstraintOverrides(Overrides):
    """Constraints on the text; see ``Constraints``."""

    no_repeat_ngram_size: int | None = None
    """N-grams of this length occur once at most; 0 for no limit."""
    min_new_tokens: int | None = None
    """Generated tokens before a text may end."""
    forced_bos_token_id: int | None = None
    """First token of a decoder, such as the language that an mBART is to write."""
    forced_eos_token_id: int | None = None
    """Last token of a text that is as long as it may become."""

    def apply(self, settings: GenerationSettings) -> Constraints:
        """Return the constraints. Raises ConfigError."""
        changes = self.changes
        if "forced_eos_token_id" in changes:
            changes["forced_eos_token_id"] = (changes["forced_eos_token_id"],)
        return _replaced(settings.constraints, changes, "constraints")


Config = TypeVar("Config", SamplingConfig, BeamConfig, Constraints)


def _replaced(config: Config, changes: dict[str, Any], section: str) -> Config:
    try:
        return dataclasses.replace(config, **changes)
    except ValueError as error:
        raise ConfigError(f"{section}.{error}") from None
