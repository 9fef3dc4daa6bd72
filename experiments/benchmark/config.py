"""The settings of ``experiments.benchmark``."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.benchmark.workloads import MODES
from experiments.runtime.errors import nearest


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Settings of ``experiments.benchmark``."""

    name: str
    """What the backbone is called."""
    mode: list[str] | None = None
    """What to measure: ``train``, ``prefill``, ``decode``, ``sample``; null for all that the backbone can."""
    contexts: list[int] = field(default_factory=lambda: [512, 2048])
    """Tokens of a training sequence or a prompt; tokens read before the first one that is decoded; tokens of
    a text that is filled in."""
    source_length: int | None = None
    """Tokens an encoder-decoder reads; null for as many as the context."""
    batch_size: int = 8
    """Sequences of a training step; the other modes are measured for 1 and for this many."""
    tokens_per_step: int | None = None
    """Tokens of a training step for every context: its sequences are this divided by the context. Null
    for ``batch_size`` sequences."""
    memory_limit: float | None = None
    """GiB that model and work may take: of training, prefill and decoding the largest batch that fits is
    measured as well. Null does not search."""
    steps: list[int] | None = None
    """Denoising steps of a text that is filled in, no more than its tokens; null for one a token."""
    vocab_size: int | None = None
    """Tokens of the vocabulary; null for ``backbone.vocab_size``, or 256 (bytes) where there is none."""
    repeats: int = 10
    """Training steps or prompts timed at least; of texts that are filled in 3 are enough."""
    seconds: float = 2.0
    """Seconds for which they are timed at least."""
    warmup_seconds: float = 10.0
    """Seconds after which the warm-up ends where times are not stable."""
    decode_tokens: int = 64
    """Tokens decoded and timed one by one."""
    piece: int = 2048
    """Tokens of a prompt read at once at most; longer prompts are read in pieces."""
    output: str | None = None
    """Parquet or JSON file the rows are appended to."""

    def __post_init__(self) -> None:
        counts = ("source_length", "batch_size", "tokens_per_step", "vocab_size", "repeats", "decode_tokens")
        for name in (*counts, "piece"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        for name in ("seconds", "warmup_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise ValueError(f"memory_limit={self.memory_limit} must be positive, in GiB, or null")
        for name in ("contexts", "steps"):
            values = getattr(self, name)
            if values is not None and (not values or min(values) < 1):
                description = {"contexts": "lengths", "steps": "numbers"}[name]
                raise ValueError(f"{name}={list(values)} must be {description} of at least 1, as [512,2048]")
        if self.mode is not None and not self.mode:
            raise ValueError(f"mode=[] measures nothing: name some of {', '.join(MODES)}")
        for mode in self.mode or ():
            if mode not in MODES:
                raise ValueError(f"mode={mode!r}{nearest(mode, MODES)}")
        for context in self.contexts:
            if self.tokens_per_step is not None and self.tokens_per_step % context:
                raise ValueError(
                    f"tokens_per_step={self.tokens_per_step} is no multiple of {context}, one of contexts: a "
                    "training step has whole sequences"
                )

    def batch(self, context: int) -> int:
        """Sequences of a training step."""
        return self.batch_size if self.tokens_per_step is None else self.tokens_per_step // context
