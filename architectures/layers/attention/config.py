"""Settings of the attention of a transformer."""

from __future__ import annotations

from dataclasses import dataclass, field

from archbench.architectures.layers.attention.functional import KERNELS
from archbench.architectures.layers.layer_pattern import (
    check_pattern,
    format_pattern,
    layer_type,
    pattern_types,
)

LAYER_TYPES = ("global", "local")
CACHES = ("contiguous", "paged", "int8")
QK_NORMS = ("none", "head", "full")


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1); off while kv_rank is null."""

    kv_rank: int | None = None
    """Width of the latent from which keys and values are projected, and which is cached. Null: no latent."""
    q_rank: int | None = None
    """Width of the latent from which queries are projected; null projects them directly."""
    nope_dim: int = 16
    """Width of a head's queries and keys without position."""
    rope_dim: int = 8
    """Width of its rotated queries, and of the one rotated key that all heads share."""
    v_dim: int = 16
    """Width of its values."""
    absorbed: bool = True
    """Decode on the latents themselves (the up-projections moved to queries and outputs), not on keys and
    values recomputed from them at each step."""

    def __post_init__(self) -> None:
        sizes = (self.kv_rank or 1, self.q_rank or 1, self.nope_dim, self.rope_dim, self.v_dim)
        if min(sizes) < 1 or self.rope_dim % 2:
            raise ValueError("attention.latent: ranks and widths must be positive, and rope_dim even")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The attention of a transformer's layers."""

    num_heads: int = 4
    """Query heads."""
    num_kv_heads: int | None = None
    """Key/value heads; null for as many as query heads, fewer is grouped-query, 1 is multi-query."""
    head_dim: int | None = None
    """Width of a head; null for d_model / num_heads."""
    bias: bool = False
    """Biases of the query, key and value projections."""
    out_bias: bool = False
    """Bias of the output projection."""
    qk_norm: str = "none"
    """Norm of queries and keys before positions: ``none``, ``head`` (each head) or ``full`` (all heads
    together, before they are split)."""
    scale: float | None = None
    """Scores are multiplied by this; null for 1/sqrt(head_dim)."""
    softcap: float | None = None
    """Scores become c tanh(scores / c); null for none."""
    output_gate: bool = False
    """Multiply the output by the sigmoid of a projection of the input (Qiu et al. 2025, arXiv 2505.06708)."""
    value_residual: bool = False
    """Add the values of the first layer with attention to those of every later one, both times learned
    factors that begin at 0.5 (Zhou et al. 2024, arXiv 2410.17897, learnable ResFormer)."""
    sinks: bool = False
    """A learned score for each head that is part of the softmax, without a value."""
    forget_gate: bool = False
    """Scores fall by -log f of each token between key and query, with a gate f = sigmoid(linear(x)) for each
    head: forgetting attention (Lin et al. 2025, arXiv 2503.02130). Causal models only."""
    differential: bool = False
    """Heads are pairs, each with two softmaxes, of which the second times a learned lambda is subtracted
    from the first: differential attention (Ye et al. 2024, arXiv 2410.05258)."""
    window: int | None = None
    """Keys a local layer sees: of a causal one, itself and those before; else up to window / 2 each side."""
    layers: list[str] = field(default_factory=lambda: ["global"])
    """Pattern over the layers: ``global``, or ``local`` (within the window), as in [local*3, global]."""
    dropout: float = 0.0
    """Share of the attention weights dropped in training."""
    kernel: str = "auto"
    """``reference`` (plain), ``sdpa`` (PyTorch's fused attention), ``flex`` (FlexAttention, compiled on a GPU
    for heads of width 16 or more), or ``auto``: sdpa, but flex on a GPU for windows, documents and soft caps
    there; on a CPU C++ kernels, for single tokens where they support the layer, for full sequences where they
    are faster."""
    cache: str = "contiguous"
    """The cache of keys and values in decoding: ``contiguous`` (local layers: a ring), ``paged``,
    ``int8``."""
    block_size: int = 16
    """Tokens in a block of the paged cache."""
    latent: LatentConfig = field(default_factory=LatentConfig)
    """Multi-head latent attention instead."""

    def __post_init__(self) -> None:
        validate_heads(self.num_heads, self.kv_heads)
        for name, valid in (("kernel", KERNELS), ("cache", CACHES), ("qk_norm", QK_NORMS)):
            if getattr(self, name) not in valid:
                raise ValueError(
                    f"attention.{name}={getattr(self, name)!r} must be one of {', '.join(valid)}"
                )
        check_pattern("attention.layers", self.layers, LAYER_TYPES)
        if self.has_local_layers and self.window is None:
            raise ValueError(
                f"attention.layers={format_pattern(self.layers)} has local layers: set attention.window"
            )
        for name in ("head_dim", "window", "block_size", "scale", "softcap"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"attention.{name}={value} must be positive, or null")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"attention.dropout={self.dropout} must be in [0, 1)")
        if self.kernel == "flex" and (self.sinks or self.dropout):
            raise ValueError("attention.kernel=flex has neither sinks nor dropout: choose another kernel")
        if self.kernel == "sdpa" and self.softcap is not None:
            raise ValueError("attention.kernel=sdpa has no softcap: choose reference, flex or auto")
        if self.latent.kv_rank is not None and (
            self.num_kv_heads not in (None, self.num_heads) or self.qk_norm != "none" or self.has_local_layers
        ):
            raise ValueError(
                "attention.latent goes with num_kv_heads=null, qk_norm=none and global layers only"
            )
        for name in ("output_gate", "value_residual", "forget_gate", "differential"):
            if self.latent.kv_rank is not None and getattr(self, name):
                raise ValueError(f"attention.{name}=true does not go with attention.latent: leave it false")

        if self.differential and (self.num_heads % 2 or self.kv_heads % 2):
            raise ValueError(
                f"attention.differential=true pairs heads: num_heads={self.num_heads} and "
                f"num_kv_heads={self.kv_heads} must be even"
            )
        if self.differential and (self.sinks or self.forget_gate):
            raise ValueError(
                "attention.differential=true does not go with sinks or forget_gate: set them to false"
            )

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def window_at(self, layer: int) -> int | None:
        """Return the window of a layer, or None where it is global."""
        return self.window if layer_type(self.layers, layer) == "local" else None

    @property
    def has_local_layers(self) -> bool:
        """True if any layer is local."""
        return "local" in pattern_types(self.layers)


def validate_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise ValueError for head counts that do not divide."""
    if num_heads < 1:
        raise ValueError(f"num_heads={num_heads} must be at least 1")
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"num_heads={num_heads} must be a multiple of num_kv_heads={num_kv_heads}")
