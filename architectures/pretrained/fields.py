"""Tables of config.json: each row relates a key to a setting of ours, for reading and for writing.

A family of checkpoints is a ``Table``. ``read_settings`` and ``write_keys`` follow from it; relatives
override rows by their keys: ``LLAMA | {"sliding_window": Field("attention.window", 4096)}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from archbench.architectures.backbone import Backbone
from archbench.architectures.layers.block import MixerConfig
from archbench.architectures.pretrained.hf_config import HFConfig

Settings = dict[str, Any]
"""Settings of a model by dotted name, such as ``attention.num_heads``: those of its configuration, of which
any may also be a full section, and ``vocab_size`` and ``max_length``."""
Config = TypeVar("Config")
REQUIRED = object()
"""Default of keys that config.json must have."""
ABSENT = object()
"""Default of keys that need none: the functions of a ``Part`` look for them."""


def same(value: Any) -> Any:
    """Return the value: settings that have the same value in config.json."""
    return value


@dataclass(frozen=True, kw_only=True)
class Condition:
    """When rows are read, by config.json with all defaults, and written, by our configuration."""

    reads: Callable[[HFConfig], bool]
    writes: Callable[[Any], bool]


@dataclass(frozen=True)
class Row:
    """A row of a table, for a key of config.json that may be missing there."""

    when: Condition | None = field(default=None, kw_only=True)
    """When the row holds; None for always."""

    @property
    def value_if_missing(self) -> Any:
        """Return the value of the key where config.json lacks it."""
        return ABSENT

    def read_settings(self, key: str, hf: HFConfig) -> Settings:
        """Return the settings that config.json, with all defaults, gives. Raises ValueError."""
        return {}

    def write_keys(self, key: str, model: Backbone, hf: HFConfig) -> HFConfig:
        """Return the keys for a model; ``hf`` has those of the rows before. Raises ValueError."""
        return {}


@dataclass(frozen=True)
class Field(Row):
    """A key, and the setting that it is here."""

    ours: str
    """Dotted name of the setting."""
    default: Any = REQUIRED
    """Value of a missing key, or a function that returns it from the other keys."""
    also: str = field(default="", kw_only=True)
    """Another setting with the same value, which is not written."""
    unset: tuple[Any, ...] = field(default=(), kw_only=True)
    """Values that mean the default, as a missing key does."""
    required: bool = field(default=False, kw_only=True)
    """Null is an error, in spite of a default."""
    ignored: bool = field(default=False, kw_only=True)
    """Their class does not read the key: the setting has the default."""
    missing: Any = field(default=ABSENT, kw_only=True)
    """Value of a missing key, where the default is that of ``unset`` values only."""
    written: bool = field(default=True, kw_only=True)
    """False for keys that are read only."""
    written_from: str = field(default="", kw_only=True)
    """The setting that is written, where it is another one."""
    names: Mapping[Any, Any] = field(default_factory=dict, kw_only=True)
    """Their values that are supported, and ours; of synonyms, the first is written."""
    read: Callable[[Any], Any] = field(default=same, kw_only=True)
    """Conversion from their value to ours."""
    write: Callable[[Any], Any] = field(default=same, kw_only=True)
    """Conversion from our value to theirs."""
    check: Callable[[Any], None] | None = field(default=None, kw_only=True)
    """Raises ValueError for a configuration that cannot be written at all."""

    @property
    def value_if_missing(self) -> Any:
        if self.missing is not ABSENT:
            return self.missing
        return ABSENT if callable(self.default) or self.default is REQUIRED else self.default

    def read_settings(self, key: str, hf: HFConfig) -> Settings:
        value = ABSENT if self.ignored else hf.get(key, ABSENT)
        if value is ABSENT or value in self.unset:
            value = self.default(hf) if callable(self.default) else self.default
        if value is REQUIRED or (value is None and (self.required or self.default is REQUIRED)):
            raise ValueError(f"config.json: {key} is missing")
        if self.names:
            value = self.names[supported_value({key: value}, key, *self.names)]
        return dict.fromkeys(filter(None, (self.ours, self.also)), self.read(value))

    def write_keys(self, key: str, model: Backbone, hf: HFConfig) -> HFConfig:
        if self.check is not None:
            self.check(model.config)
        if not self.written:
            return {}
        value = resolved_setting(model, self.written_from or self.ours)
        return {key: self.write(first_name(self.names, value))}


@dataclass(frozen=True)
class Only(Row):
    """A key of which some values are supported, without a setting here; any other is an error."""

    value: Any
    """The supported value, that of a missing key too."""
    others: tuple[Any, ...] = field(default=(), kw_only=True)
    """Further supported values."""
    default: Any = field(default=ABSENT, kw_only=True)
    """Value of a missing key, where that is another one."""
    unset: tuple[Any, ...] = field(default=(), kw_only=True)
    """Values that mean the default, as a missing key does."""
    written: bool = field(default=False, kw_only=True)

    @property
    def value_if_missing(self) -> Any:
        return self.value if self.default is ABSENT else self.default

    def read_settings(self, key: str, hf: HFConfig) -> Settings:
        hf = {} if hf.get(key) in self.unset else hf
        supported_value(hf, key, self.value, *self.others, default=self.value_if_missing)
        return {}

    def write_keys(self, key: str, model: Backbone, hf: HFConfig) -> HFConfig:
        return {key: self.value} if self.written else {}


@dataclass(frozen=True)
class Written(Row):
    """A key that is written and not read: a value, or that of the setting ``ours``."""

    value: Any = None
    ours: str = field(default="", kw_only=True)

    def write_keys(self, key: str, model: Backbone, hf: HFConfig) -> HFConfig:
        return {key: resolved_setting(model, self.ours) if self.ours else self.value}


@dataclass(frozen=True)
class Beside(Row):
    """A key that the functions of another row read."""

    default: Any = ABSENT
    """Value of a missing key."""
    written: bool = field(default=False, kw_only=True)
    """Write the default."""

    @property
    def value_if_missing(self) -> Any:
        return self.default

    def write_keys(self, key: str, model: Backbone, hf: HFConfig) -> HFConfig:
        return {key: self.default} if self.written else {}


@dataclass(frozen=True)
class Part(Row):
    """Keys and settings that are not one to one, by a pair of functions."""

    read: Callable[[HFConfig], Settings] = lambda hf: {}
    """Returns settings, from config.json with all defaults."""
    write: Callable[[Any, HFConfig], HFConfig] = lambda config, hf: {}
    """Returns keys, from our configuration and the keys of the rows before."""
    default: Any = field(default=ABSENT, kw_only=True)
    """Value of a missing key; without one, ``read`` looks whether it is missing."""

    @property
    def value_if_missing(self) -> Any:
        return self.default

    def read_settings(self, key: str, hf: HFConfig) -> Settings:
        return self.read(hf)

    def write_keys(self, key: str, model: Backbone, hf: HFConfig) -> HFConfig:
        return self.write(model.config, hf)


Table = dict[str, Row]
"""The rows of a family by their keys in config.json, in the order in which they are read."""


def conditional(table: Table, condition: Condition) -> Table:
    """Return the same rows, which hold under a condition only."""
    return {key: dataclasses.replace(row, when=condition) for key, row in table.items()}


def without(table: Table, *keys: str) -> Table:
    """Return the table without some keys."""
    return {key: row for key, row in table.items() if key not in keys}


def read_settings(table: Table, hf: HFConfig) -> Settings:
    """Return the settings in config.json.

    Raises:
        ValueError: names a key with a value that has no counterpart here.
    """
    defaults = {key: row.value_if_missing for key, row in table.items()}
    hf = {key: value for key, value in defaults.items() if value is not ABSENT} | hf
    settings: Settings = {}
    for key, row in table.items():
        if row.when is None or row.when.reads(hf):
            settings |= row.read_settings(key, hf)
    return settings


def write_keys(table: Table, model: Backbone) -> HFConfig:
    """Return the keys of config.json for a model. Raises ValueError where it cannot be expressed at all."""
    hf: HFConfig = {}
    for key, row in table.items():
        if row.when is None or row.when.writes(model.config):
            hf |= row.write_keys(key, model, hf)
    return hf


RESOLVED: dict[str, Callable[[Any], Any]] = {
    "d_model": lambda c: c.width,
    "d_ff": lambda c: c.dense_width,
    "num_encoder_layers": lambda c: c.encoder_layers,
    "experts.d_ff": lambda c: c.expert_width,
    "attention.num_kv_heads": lambda c: c.attention.kv_heads,
    "attention.head_dim": lambda c: c.attention.head_dim or c.width // c.attention.num_heads,
    "attention.scale": lambda c: c.attention.scale or RESOLVED["attention.head_dim"](c) ** -0.5,
}
"""Settings for which null means a value that others give."""


def resolved_setting(model: Backbone, name: str) -> Any:
    """Return a setting of a model, with null replaced by the value that it means."""
    if name in ("vocab_size", "max_length"):
        return getattr(model, name)
    if name in RESOLVED:
        return RESOLVED[name](model.config)

    def resolve(part: Any) -> Any:
        return part.resolved(model.config.width) if isinstance(part, MixerConfig) else part

    part: Any = resolve(model.config)
    for inner in name.split("."):
        kind: Any = type(part)
        section, value = section_classes(kind).get(inner), getattr(part, inner)
        part = resolve(section() if section and value is None else value)  # null means its defaults
    return part


def make_config(config_class: type[Config], settings: Settings) -> Config:
    """Return a configuration with these settings. Raises ValueError where they do not go together."""
    kind: Any = config_class
    classes = section_classes(kind)
    values: Settings = {}
    sections: dict[str, Settings] = {}
    for name, value in settings.items():
        first, _, rest = name.partition(".")
        if rest:
            sections.setdefault(first, {})[rest] = value
        else:
            values[name] = value
    for name in sorted(sections, key=[*classes].index):  # a wrong value of attention is named first
        if name in values:
            values[name] = dataclasses.replace(values[name], **sections[name])
        else:
            values[name] = make_config(classes[name], sections[name])
    return config_class(**values)


@cache
def section_classes(config_class: type) -> dict[str, type]:
    """Return the class of each section of a configuration, also of those that may be null."""
    return {
        name: kind
        for name, hint in get_type_hints(config_class).items()
        for kind in (hint, *get_args(hint))
        if dataclasses.is_dataclass(kind) and isinstance(kind, type)
    }


def supported_value(hf: HFConfig, key: str, *allowed: Any, default: Any = None) -> Any:
    """Return the value of a key of config.json, which must be one of ``allowed``.

    Raises:
        ValueError: names key, value and what is supported.
    """
    value = hf.get(key, default)
    if value not in allowed:
        raise ValueError(
            f"config.json: {key}={value!r} is not supported, only {' or '.join(map(repr, allowed))}"
        )
    return value


def required_value(hf: HFConfig, key: str) -> Any:
    """Return the value of a key that config.json must have. Raises ValueError if it is missing."""
    if hf.get(key) is None:
        raise ValueError(f"config.json: {key} is missing")
    return hf[key]


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}
"""Their names of activations, and ours."""


def first_name(names: Mapping[Any, Any], ours: Any) -> Any:
    """Return the first of their names of a value of ours, or the value itself where it has none."""
    return next((theirs for theirs, value in names.items() if value == ours), ours)


def write_activation(activation: str) -> str:
    """Return the Hugging Face name of an activation."""
    return str(first_name(ACTIVATIONS, activation))


OPTIONAL: tuple[Any, ...] = (None, 0, "", [], {})
"""Values that are false: they mean the default where their class reads ``value or default``."""
TOKENS: Table = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), Written(None))
"""Special tokens: none, unless the export names some."""


def read_head_dim(hf: HFConfig) -> int | None:
    """Return the width of the model divided by the heads, rounded down. None where it divides."""
    width, heads = required_value(hf, "hidden_size"), required_value(hf, "num_attention_heads")
    return int(width // heads) if heads and width % heads else None


HEAD_DIM = Field("attention.head_dim", read_head_dim, unset=(None,))
"""Width of a head."""


def check_width(config: Any) -> None:
    """Raise ValueError if the width is not a multiple of the heads, as some Hugging Face classes require."""
    if config.width % config.attention.num_heads:
        raise ValueError(
            f"d_model={config.width} is no multiple of attention.num_heads={config.attention.num_heads}, "
            "whatever attention.head_dim is"
        )


WHOLE_HEADS = Field("attention.num_heads", check=check_width)
"""Number of heads, of classes in which it divides the width."""
