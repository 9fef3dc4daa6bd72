"""Hybrids: attention, state-space models and linear attention in one stack, by a pattern of layer types.

Jamba (Lieber et al. 2024, arXiv 2403.19887) has one attention layer among seven
of Mamba, and experts in every second layer; Samba (Ren et al. 2024, arXiv
2406.07522) alternates Mamba with local attention; in Falcon-H1 (Zuo et al. 2025,
arXiv 2507.22448) attention and Mamba-2 work side by side in every layer.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from torch import nn

from archbench.architectures.backbone import Capabilities
from archbench.architectures.backbones.multipliers import MultipliersConfig, scale_layers, scaled
from archbench.architectures.backbones.transformer import Transformer, TransformerConfig, make_attention
from archbench.architectures.layers.block import Mixer, MixerConfig
from archbench.architectures.layers.layer_pattern import (
    check_pattern,
    expand_pattern,
    format_pattern,
    pattern_types,
)
from archbench.architectures.layers.parallel_mixer import ParallelMixer

ATTENTION = {"attention": "global", "local_attention": "local"}
"""Attention as a mixer, and its type in ``attention.layers``."""


class MixerModule(Protocol):
    """The definitions of a module of ``architectures.mixers``; ``make_bidirectional`` is optional."""

    Config: type[MixerConfig]
    make: Callable[..., Mixer]


def load_modules(package: str) -> dict[str, MixerModule]:
    """Return the modules of a package by name."""
    names = [module.name for module in pkgutil.iter_modules(import_module(package).__path__)]
    return {name: cast(MixerModule, import_module(f"{package}.{name}")) for name in names}


RECURRENT = load_modules("archbench.architectures.mixers")
"""The other mixers by name, which is also the name of their settings in ``HybridConfig``."""

ConfigClass = TypeVar("ConfigClass", bound=type)


def with_sections_of(package: str) -> Callable[[ConfigClass], ConfigClass]:
    """Return a decorator that gives a dataclass a field for the ``Config`` of each module of a package."""

    def add_fields(config_class: ConfigClass) -> ConfigClass:
        for name, module in load_modules(package).items():
            config_class.__annotations__[name] = module.Config
            setattr(config_class, name, field(default_factory=module.Config))
        return config_class

    return add_fields


@dataclass(frozen=True, kw_only=True)
@with_sections_of("archbench.architectures.mixers")
class HybridConfig(TransformerConfig):
    """A stack with different layers. Settings of attention and positions are those of its attention layers.

    Each module of ``architectures.mixers`` has a section with its name.
    """

    layers: list[str] = field(default_factory=lambda: ["mamba", "attention", "mamba", "mamba"])
    """Pattern of the mixers over the layers: ``attention``, ``local_attention`` (within
    ``attention.window``), or the name of a module of ``architectures.mixers``, such as ``mamba``.
    ``mamba*7`` means seven layers. Parallel mixers, such as ``attention+mamba2``, read the same input;
    their outputs are added."""
    multipliers: MultipliersConfig = field(default_factory=MultipliersConfig)
    """Constant factors of attention, Mamba-2, dense feed-forwards, embedding and logits (Falcon-H1)."""

    if TYPE_CHECKING:  # the sections of mixers

        def __init__(self, **settings: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        check_pattern("layers", self.layers, [*ATTENTION, *RECURRENT], parallel=True)
        super().__post_init__()
        if self.attention.has_local_layers:
            raise ValueError(
                f"attention.layers={format_pattern(self.attention.layers)}: in a hybrid `layers` says which "
                "attention is local (local_attention); leave attention.layers=[global]"
            )
        if "local_attention" in self.mixer_types:
            replace(self.attention, layers=["local"])  # raises without a window, or where there can be none

    @property
    def layer_types(self) -> list[str]:
        """Return the type of each layer, such as mamba, attention+mamba2, mamba."""
        return expand_pattern(self.layers, self.num_layers)

    @property
    def mixer_types(self) -> set[str]:
        """Return the types of all mixers of the stack."""
        return pattern_types(self.layer_types)

    @property
    def patterns(self) -> dict[str, list[str]]:
        return {"layers": self.layers} | super().patterns

    @property
    def unused_sections(self) -> set[str]:
        return RECURRENT.keys() - self.mixer_types

    @property
    def width_multiple(self) -> int:
        attention = super().width_multiple if self.mixer_types & set(ATTENTION) else 1
        used = self.mixer_types & RECURRENT.keys()
        return math.lcm(attention, *(getattr(self, name).channel_multiple for name in used))


class Hybrid(Transformer):
    """A causal language model with layers of different mixers and feed-forwards."""

    Config = HybridConfig
    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: HybridConfig

    def __init__(self, config: HybridConfig, *, vocab_size: int, max_length: int) -> None:
        super().__init__(config, vocab_size=vocab_size, max_length=max_length)
        scale_layers(self, config.multipliers)

    def make_head(self) -> nn.Linear:
        return scaled(super().make_head(), after=self.config.multipliers.head)

    def make_mixer(self, layer: int) -> Mixer:
        mixers = [self.make_one(kind, layer) for kind in self.config.layer_types[layer].split("+")]
        return mixers[0] if len(mixers) == 1 else ParallelMixer(mixers)

    def make_one(self, kind: str, layer: int) -> Mixer:
        """Return a mixer of a type."""
        if kind not in ATTENTION:
            return self.make_recurrent(kind, layer)
        settings = replace(self.config.attention, layers=[ATTENTION[kind]])
        attention = make_attention(self.config, layer, causal=self.capabilities.causal, attention=settings)
        self._place(attention, layer, ATTENTION)
        return attention

    def make_recurrent(self, kind: str, layer: int) -> Mixer:
        """Return a mixer with a state of fixed size."""
        settings = getattr(self.config, kind)
        mixer = RECURRENT[kind].make(self.config.width, settings, norm_eps=self.config.norm_eps)
        mixer.layer_type = kind
        self._place(mixer, layer, {kind})
        return mixer

    def _place(self, mixer: Mixer, layer: int, kinds: Collection[str]) -> None:
        """Tell a mixer which of the layers with one of these types it is in."""
        types = [set(item.split("+")) for item in self.config.layer_types]
        layers = [i for i, present in enumerate(types) if present & set(kinds)]
        mixer.place(layers.index(layer), len(layers))

    def residual_branches(self, count: int) -> int:
        parallel = sum(item.count("+") for item in self.config.layer_types)
        return super().residual_branches(count + parallel)

    def kernels(self) -> dict[str, str]:
        paths = super().kernels()
        for part in self.modules():
            if isinstance(part, Mixer) and (path := part.scan_path()):
                paths[f"{part.layer_type} scan"] = path
        return paths
