"""Positions: rotary embeddings, ALiBi, T5's relative bias, sinusoids.

Shapes: B batch, H heads, T queries, S keys, E head_dim, R rotated dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from archbench.architectures.fast_paths import kernel, uses_cpp
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.layer_pattern import (
    check_pattern,
    format_pattern,
    layer_type,
    pattern_types,
)

KINDS = ("rope", "alibi", "relative", "learned", "sinusoidal", "none")
LAYER_TYPES = ("positional", "none")
SCALINGS = ("none", "linear", "ntk", "dynamic", "yarn", "longrope", "llama3")


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """Scaling of rotary frequencies for contexts longer than those trained on."""

    kind: str = "none"
    """``none``; ``linear`` (positions divided by the factor); ``ntk`` (a larger base); ``dynamic`` (the same
    for sequences longer than original_length, larger with their length); ``yarn`` (high frequencies
    unchanged, low ones divided); ``longrope`` (each divided by a separate factor, of two sets by the length);
    ``llama3`` (as yarn, by wavelength)."""
    factor: float = 1.0
    """Factor by which the context grows."""
    original_length: int = 2048
    """Context length before stretching; used by ``dynamic``, ``yarn``, ``longrope`` and ``llama3``."""
    low_frequency: float = 1.0
    """``llama3``: wavelengths longer than original_length / low_frequency are divided by the factor."""
    high_frequency: float = 4.0
    """``llama3``: wavelengths shorter than original_length / high_frequency are unchanged."""
    beta_fast: float = 32.0
    """``yarn``: dimensions that turn more often than this over the original length are unchanged."""
    beta_slow: float = 1.0
    """``yarn``: dimensions that turn less often than this are divided by the factor."""
    attention_factor: float | None = None
    """``yarn`` and ``longrope``: multiplies sines and cosines; null for 0.1 ln(factor) + 1 (``yarn``) or
    sqrt(1 + ln(factor) / ln(original_length))."""
    truncate: bool = True
    """``yarn``: the dimensions at which blending begins and ends are integers (false in GPT-OSS)."""
    short_factors: list[float] | None = field(default=None, hash=False)
    """``longrope``: divisors of the frequencies of sequences of up to original_length tokens."""
    long_factors: list[float] | None = field(default=None, hash=False)
    """``longrope``: divisors of the frequencies of longer sequences."""

    def __post_init__(self) -> None:
        if self.kind not in SCALINGS:
            raise ValueError(f"positions.scaling.kind={self.kind!r} must be one of {', '.join(SCALINGS)}")
        if self.factor < 1:
            raise ValueError(f"positions.scaling.factor={self.factor} must be at least 1")
        if self.original_length < 1:
            raise ValueError(f"positions.scaling.original_length={self.original_length} must be positive")
        if not 0 < self.low_frequency < self.high_frequency or not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(
                "positions.scaling: low_frequency must be below high_frequency and beta_slow below beta_fast"
            )
        for name in ("short_factors", "long_factors"):
            factors = getattr(self, name)
            if self.kind == "longrope" and (not factors or min(factors) <= 0):
                raise ValueError(
                    f"positions.scaling.{name}={factors} must be positive numbers, one for each rotated pair"
                )

    @property
    def depends_on_length(self) -> bool:
        """Return True where the frequencies depend on the length of the sequence."""
        return self.kind in ("dynamic", "longrope")


@dataclass(frozen=True, kw_only=True)
class PositionsConfig:
    """Position embeddings of a transformer."""

    kind: str = "rope"
    """``rope`` (rotary), ``alibi``, ``relative`` (T5's buckets), ``learned``, ``sinusoidal`` or ``none``."""
    layers: list[str] = field(default_factory=lambda: ["positional"])
    """Pattern over the layers: ``positional`` (a layer with positions), or ``none``. Only ``rope``, ``alibi``
    and ``relative`` can differ between layers; [positional*3, none] mixes RoPE and NoPE."""
    base: float = 10000.0
    """Base of the rotary frequencies; a larger one turns more slowly ("adjusted base frequency")."""
    local_base: float | None = None
    """Base in the layers with a window; null for the same."""
    fraction: float = 1.0
    """Share of each head that is rotated, its first dimensions."""
    interleaved: bool = False
    """Pairs are (2i, 2i + 1) instead of (i, i + R/2)."""
    scaling: RotaryScaling = field(default_factory=RotaryScaling)
    """Stretching of the rotary frequencies."""
    scale_local: bool = True
    """False leaves layers with a window without it (Gemma 3, OLMo 3)."""
    num_buckets: int = 32
    """Buckets of the relative bias."""
    max_distance: int = 128
    """Distance from which all positions share a bucket."""
    by_layer: bool = False
    """Every layer has a separate relative bias (UMT5: Chung et al. 2023, arXiv 2304.09151)."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"positions.kind={self.kind!r} must be one of {', '.join(KINDS)}")
        check_pattern("positions.layers", self.layers, LAYER_TYPES)
        if "none" in pattern_types(self.layers) and self.kind in ("learned", "sinusoidal", "none"):
            raise ValueError(
                f"positions.layers={format_pattern(self.layers)}: {self.kind} positions are "
                "not added by layer"
            )
        if self.base <= 1:
            raise ValueError(f"positions.base={self.base} must exceed 1")
        if self.local_base is not None and self.local_base <= 1:
            raise ValueError(f"positions.local_base={self.local_base} must exceed 1")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"positions.fraction={self.fraction}, of the head, must be in (0, 1]")
        if self.by_layer and self.kind != "relative":
            raise ValueError(f"positions.by_layer=true goes with kind=relative, not {self.kind}")
        if self.num_buckets < 4 or self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"positions.num_buckets={self.num_buckets} must be 4 or more and "
                f"positions.max_distance={self.max_distance} more than half of it"
            )

    def at(self, layer: int) -> bool:
        """Return True if a layer has positions (or the model adds them to its input)."""
        return layer_type(self.layers, layer) == "positional"

    @property
    def has_table(self) -> bool:
        """Return True where positions are rows of a table, which limit the length of a model."""
        return self.kind in ("learned", "sinusoidal")


def rotate_by_torch(x_BHTE: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """See ``Rotary.rotate``; the tables are (B or 1, 1, T, R/2)."""
    cos, sin = cos.to(x_BHTE.dtype), sin.to(x_BHTE.dtype)
    dim = 2 * cos.shape[-1]
    turned, rest = x_BHTE.split([dim, x_BHTE.shape[-1] - dim], dim=-1)
    if interleaved:
        x1, x2 = turned[..., 0::2], turned[..., 1::2]
        pair = torch.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).flatten(-2)
    else:
        x1, x2 = turned.chunk(2, dim=-1)
        pair = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)
    return pair if rest.shape[-1] == 0 else torch.cat([pair, rest], dim=-1)


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary position embedding of one layer: Su et al. 2021 (arXiv 2104.09864), eq. 34."""

    dim: int
    """Rotated dimensions of each head (R), even."""
    base: float
    interleaved: bool = False
    scaling: RotaryScaling = field(default_factory=RotaryScaling)

    def __post_init__(self) -> None:
        for name in ("short_factors", "long_factors") if self.scaling.kind == "longrope" else ():
            count = len(getattr(self.scaling, name))
            if count != self.dim // 2:
                raise ValueError(
                    f"positions.scaling.{name} has {count} numbers, and {self.dim // 2} pairs are rotated"
                )

    def tables(self, positions_BT: Tensor, length_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines (B, 1, T, R/2), in float32 for every precision of the model.

        In bfloat16 positions above 256 would collide. ``length_BT`` is the length of the sequence of each
        token, for scalings that depend on it.
        """
        with torch.autocast(positions_BT.device.type, enabled=False):
            frequency = self.frequencies(positions_BT.device)
            if self.scaling.depends_on_length:
                assert length_BT is not None
                frequency = self._frequencies_by_length(length_BT)
            angle = positions_BT[:, None, :, None].to(torch.float32) * frequency
            factor = self.attention_factor
            return angle.cos() * factor, angle.sin() * factor

    def tables_in(self, context: Context) -> tuple[Tensor, Tensor]:
        """Return the tables for the tokens of a context, computed once for all layers."""

        def make() -> tuple[Tensor, Tensor]:
            length_BT = context.length_BT() if self.scaling.depends_on_length else None
            positions_BT = context.positions_BT if context.rotary_BT is None else context.rotary_BT
            return self.tables(positions_BT, length_BT)

        return context.once(("rotary", self), make)

    def rotate(self, x_BHTE: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate the first R dimensions of queries or keys; the rest passes."""
        x_BTHE = x_BHTE.transpose(1, 2)  # as a projection leaves it
        if x_BTHE.is_contiguous() and uses_cpp("rotary", x_BTHE, *tables):
            cos_PR, sin_PR = (table.flatten(0, 2) for table in tables)
            rotate = kernel("rotate")
            y_BTHE: Tensor = rotate(x_BTHE, cos_PR, sin_PR, interleaved=self.interleaved)
            return y_BTHE.transpose(1, 2)
        return rotate_by_torch(x_BHTE, *tables, interleaved=self.interleaved)

    @property
    def attention_factor(self) -> float:
        """Return the factor of sines and cosines (YaRN, arXiv 2309.00071, section 3.4; LongRoPE); else 1."""
        s = self.scaling
        if s.kind not in ("yarn", "longrope"):
            return 1.0
        if s.attention_factor is not None:
            return s.attention_factor
        if s.kind == "yarn":
            return 0.1 * math.log(s.factor) + 1
        return math.sqrt(1 + math.log(s.factor) / math.log(s.original_length)) if s.factor > 1 else 1.0

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Angle in radians for each step of position, (R/2,), float32.

        Those of ``dynamic`` and ``longrope`` are the unscaled ones.
        """
        half, scaling, base = self.dim // 2, self.scaling, self.base
        if scaling.kind == "ntk":
            base *= scaling.factor ** (self.dim / max(self.dim - 2, 1))
        exponent_R = -torch.arange(half, device=device, dtype=torch.float32) / half
        plain_R = base**exponent_R
        if scaling.kind == "linear":
            return plain_R / scaling.factor
        if scaling.kind == "llama3":
            return self._by_wavelength(plain_R)
        if scaling.kind == "yarn":
            kept_R = self._yarn_kept(half, device)
            return plain_R / scaling.factor * (1 - kept_R) + plain_R * kept_R
        return plain_R

    def _frequencies_by_length(self, length_BT: Tensor) -> Tensor:
        """Return the frequencies for sequences of these lengths, (B, 1, T, R/2), float32.

        ``longrope``: Ding et al. 2024 (arXiv 2402.13753), with the factors of Phi-3 (arXiv 2404.14219).
        """
        s, length_B1T1 = self.scaling, length_BT[:, None, :, None]
        if s.kind == "longrope":
            short_R, long_R = (
                torch.tensor(factors, device=length_BT.device)
                for factors in (s.short_factors, s.long_factors)
            )
            divisor = torch.where(length_B1T1 > s.original_length, long_R, short_R)
            return self.frequencies(length_BT.device) / divisor
        ratio_B1T1 = length_B1T1.clamp_min(s.original_length).to(torch.float32) / s.original_length
        stretch_B1T1 = (s.factor * ratio_B1T1 - (s.factor - 1)) ** (self.dim / max(self.dim - 2, 1))
        exponent_R = torch.arange(self.dim // 2, device=length_BT.device, dtype=torch.float32) / (
            self.dim // 2
        )
        return (self.base * stretch_B1T1) ** -exponent_R

    def _by_wavelength(self, plain_R: Tensor) -> Tensor:
        """Llama 3.1: long waves are divided, short ones unchanged, those between blended linearly."""
        s = self.scaling
        turns_R = s.original_length * plain_R / (2 * math.pi)
        kept_R = ((turns_R - s.low_frequency) / (s.high_frequency - s.low_frequency)).clamp(0, 1)
        return plain_R / s.factor * (1 - kept_R) + plain_R * kept_R

    def _yarn_kept(self, half: int, device: torch.device | None) -> Tensor:
        """1 where a frequency is unchanged, 0 where it is divided (YaRN, section 3.2 and appendix A)."""
        s = self.scaling

        def dimension(turns: float) -> float:
            return self.dim * math.log(s.original_length / (2 * math.pi * turns)) / (2 * math.log(self.base))

        low, high = dimension(s.beta_fast), dimension(s.beta_slow)
        if s.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        high = high + 0.001 if high == low else high
        index_R = torch.arange(half, device=device, dtype=torch.float32)
        return 1 - ((index_R - low) / (high - low)).clamp(0, 1)


def alibi_slopes(num_heads: int) -> list[float]:
    """Slopes of ALiBi for any number of heads, as in the authors' code.

    For 2^k heads the geometric sequence 2^(-8i/n); otherwise that of the power of
    two below, followed by every other slope of the power of two above.
    """
    below = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / below) for i in range(below)]
    if below == num_heads:
        return slopes
    return slopes + alibi_slopes(2 * below)[0::2][: num_heads - below]


class ALiBi(nn.Module):
    """Attention with linear biases: Press et al. 2022 (arXiv 2108.12409). Has no parameters."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)

    def forward(self, query_BT: Tensor, key_BS: Tensor) -> Tensor:
        """Bias (B, H, T, S): minus slope times distance, in float32."""
        distance_BTS = (query_BT[:, :, None] - key_BS[:, None, :]).abs()
        # Filled on the device: a copy from host memory would synchronize.
        slopes = [torch.full((), slope, device=query_BT.device) for slope in self.slopes]
        slope_H11 = torch.stack(slopes)[:, None, None]
        return -slope_H11 * distance_BTS[:, None]


class RelativePositionBias(nn.Module):
    """T5's bucketed relative position bias, one table for a complete stack of layers.

    Raffel et al. 2020 (arXiv 1910.10683), section 2.1. Half of the buckets are
    exact distances, the other half logarithmic up to ``max_distance``.
    """

    def __init__(self, num_heads: int, *, bidirectional: bool, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.table = nn.Embedding(num_buckets, num_heads)

    def forward(self, query_BT: Tensor, key_BS: Tensor) -> Tensor:
        """Bias (B, H, T, S) to add to the attention scores."""
        bucket_BTS = self.bucket(key_BS[:, None, :] - query_BT[:, :, None])
        # All layers read it, and all kernels want the keys of a query side by side.
        return self.table(bucket_BTS).permute(0, 3, 1, 2).contiguous()

    def bucket(self, relative: Tensor) -> Tensor:
        """Bucket indices of relative positions (key minus query)."""
        buckets = self.num_buckets
        offset = torch.zeros_like(relative)
        if self.bidirectional:
            buckets //= 2
            offset = (relative > 0).long() * buckets
            distance = relative.abs()
        else:
            distance = (-relative).clamp_min(0)
        exact = buckets // 2
        # Divided, then multiplied, in float32: rounded in another order, some distances change their bucket.
        part = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.max_distance / exact)
        far = exact + (part * (buckets - exact)).long()
        return offset + torch.where(distance < exact, distance, far.clamp_max(buckets - 1))


def relative_bias(positions: PositionsConfig, num_heads: int, *, bidirectional: bool) -> RelativePositionBias:
    """Return the relative bias of a stack, or of one of its layers."""
    return RelativePositionBias(
        num_heads,
        bidirectional=bidirectional,
        num_buckets=positions.num_buckets,
        max_distance=positions.max_distance,
    )


def sinusoids(length: int, d_model: int) -> Tensor:
    """Sines and cosines of falling frequency (Vaswani et al. 2017, section 3.5), shape (T, D)."""
    # In CPU memory for every device of the model: on the meta device they would import the compiler.
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, device="cpu") / d_model)
    angle = torch.arange(length, device="cpu")[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :d_model]
