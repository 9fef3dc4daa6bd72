"""Measures one backbone's speed: training step, prefill and cached decoding, each cell in a fresh process.

python -m experiments.benchmark backbone=mamba contexts=[512,2048] batch_size=8 output=rows.parquet
python -m experiments.benchmark backbone=decoder scale.target=3000000 mode=[decode] device.threads=1
python -m experiments.benchmark -m backbone=decoder,mamba device.precision=fp32,bf16 output=rows.json

Prefill and decoding are measured for one sequence and for ``batch_size``. A cell that runs out of
memory or fails is a row too. ``python -m analysis.speed rows.parquet`` draws the rows.
"""

from __future__ import annotations

import sys

from experiments.app import start

if __name__ == "__main__":  # before the imports below: see experiments.app
    start("experiments.benchmark.benchmark", "benchmark")
    sys.exit()

import dataclasses
import datetime
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rich.console
from omegaconf import DictConfig, OmegaConf

from architectures.backbone import Backbone, BackboneConfig
from experiments.benchmark_cell import MODES, CellConfig
from experiments.benchmark_rows import append, check_file, render
from experiments.errors import ConfigError, OutOfMemoryError, RunError, nearest
from experiments.model_costs import CostConfig, Pricing, position_limit
from experiments.schema import DeviceConfig, ScaleConfig
from experiments.settings import part
from experiments.validation import typed

BYTES = 256
"""Vocabulary of a backbone that brings none: text as bytes."""
KILLED = -9
"""Exit code of a process that the system killed, which it does when memory runs out."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """What is asked of ``experiments.benchmark``."""

    name: str
    """What the backbone is called."""
    mode: list[str] = field(default_factory=lambda: list(MODES))
    """What to measure: ``train``, ``prefill``, ``decode``."""
    contexts: list[int] = field(default_factory=lambda: [512, 2048])
    """Tokens of a training sequence or a prompt; tokens read before the first one that is decoded."""
    source_length: int | None = None
    """Tokens an encoder-decoder reads; null for as many as the context."""
    batch_size: int = 8
    """Sequences of a training step; prefill and decoding are measured for 1 and for this many."""
    vocab_size: int | None = None
    """Tokens of the vocabulary; null for ``backbone.vocab_size``, or 256 (bytes) where there is none."""
    repeats: int = 10
    """Training steps or prompts timed at least."""
    seconds: float = 2.0
    """Seconds for which they are timed at least."""
    warmup_seconds: float = 10.0
    """Seconds after which the warm-up ends where times do not stand still."""
    decode_tokens: int = 64
    """Tokens decoded and timed one by one."""
    piece: int = 2048
    """Tokens of a prompt read at once at most; longer prompts are read in pieces."""
    output: str | None = None
    """Parquet or JSON file the rows are appended to."""

    def __post_init__(self) -> None:
        for name in ("source_length", "batch_size", "vocab_size", "repeats", "decode_tokens", "piece"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        for name in ("seconds", "warmup_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if not self.contexts or min(self.contexts) < 1:
            raise ValueError(f"contexts={list(self.contexts)} must be lengths of at least 1, as [512,2048]")
        if not self.mode:
            raise ValueError("mode=[] measures nothing: name some of train, prefill, decode")
        for mode in self.mode:
            if mode not in MODES:
                raise ValueError(f"mode={mode!r}{nearest(mode, MODES)}")


class Benchmark:
    """The cells of one backbone, all with the same model."""

    def __init__(
        self,
        cls: type[Backbone],
        config: BackboneConfig,
        scale: ScaleConfig,
        device: DeviceConfig,
        asked: BenchmarkConfig,
    ) -> None:
        self.cls, self.asked, self.device = cls, asked, device
        recurrent = [mode for mode in asked.mode if mode != "train"]
        if recurrent and not cls.capabilities.decodes:
            raise ConfigError(
                f"mode={recurrent}: backbone={asked.name} keeps no decoding state; set mode=[train]"
            )
        self.longest = max(asked.contexts) + asked.decode_tokens * ("decode" in asked.mode)
        limit = position_limit(config)
        if limit is not None and self.longest > limit:
            raise ConfigError(
                f"contexts={list(asked.contexts)}: the model has {limit} positions and would need "
                f"{self.longest}; shorten contexts or decode_tokens, or raise backbone.max_positions"
            )
        priced = Pricing(
            cls,
            config,
            scale,
            CostConfig(
                name=asked.name,
                sequence_length=self.longest,
                source_length=asked.source_length,
                vocab_size=asked.vocab_size or getattr(config, "vocab_size", None) or BYTES,
                precision="fp32",
            ),
        )
        self.config, self.vocab_size = priced.config, priced.sizes.vocab_size

    def cells(self) -> Iterator[CellConfig]:
        """In order of mode, batch and context."""
        asked = self.asked
        for mode in asked.mode:
            for batch_size in [asked.batch_size] if mode == "train" else sorted({1, asked.batch_size}):
                for context in asked.contexts:
                    source = asked.source_length or context
                    yield CellConfig(
                        mode=mode,
                        context=context,
                        batch_size=batch_size,
                        source_length=source if self.cls.capabilities.encoder_decoder else 0,
                        vocab_size=self.vocab_size,
                        max_length=max(self.longest, source),
                        repeats=asked.repeats,
                        seconds=asked.seconds,
                        warmup_seconds=asked.warmup_seconds,
                        decode_tokens=asked.decode_tokens,
                        piece=asked.piece,
                    )

    def order(self, cell: CellConfig) -> dict[str, Any]:
        """What the process of a cell is told, as JSON takes it."""
        target = f"{self.cls.__module__}.{self.cls.__qualname__}"
        return {
            "backbone": {"_target_": target, **dataclasses.asdict(self.config)},
            "device": dataclasses.asdict(self.device),
            "cell": dataclasses.asdict(cell),
        }

    def row(self, cell: CellConfig) -> dict[str, Any]:
        """One cell measured in a process of its own."""
        known = {
            "backbone": self.asked.name,
            "class": self.cls.__name__,
            "mode": cell.mode,
            "context": cell.context,
            "source_length": cell.source_length,
            "batch_size": cell.batch_size,
            "precision": self.device.precision,
            "vocab_size": cell.vocab_size,
            "piece": cell.piece,
            "config": json.dumps(dataclasses.asdict(self.config)),
            "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        ended = subprocess.run(
            [sys.executable, "-m", "experiments.benchmark_cell"],
            input=json.dumps(self.order(cell)),
            capture_output=True,
            text=True,
        )
        if ended.returncode == 0:
            found = json.loads(ended.stdout.splitlines()[-1])
            return {**known, "status": "complete", "message": None, **found}
        return {**known, **failure(ended.returncode, ended.stderr)}


def failure(code: int, errors: str) -> dict[str, str]:
    """Status and message of a cell whose process ended badly."""
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), f"exit code {code}")
    memory = ("OutOfMemoryError", "MemoryError", "can't allocate memory")
    if code == KILLED or any(sign in last for sign in memory):
        return {"status": "oom", "message": "out of memory" if code == KILLED else last}
    return {"status": "failed", "message": last}


def benchmark(cfg: DictConfig) -> None:
    """Measures all cells, appends each row when it is known, prints the table."""
    chosen = read(cfg)
    output = None if chosen.asked.output is None else Path(chosen.asked.output)
    if output is not None:
        check_file(output)
    console = rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    rows = []
    for cell in chosen.cells():
        rows.append(chosen.row(cell))
        if output is not None:
            append(output, rows[-1])
    console.print(render(rows))
    bad = [row for row in rows if row["status"] != "complete"]
    for row in bad:
        kind = OutOfMemoryError if row["status"] == "oom" else RunError
        raise kind(
            f"{len(bad)} of {len(rows)} cells failed, the first mode={row['mode']} context={row['context']} "
            f"batch_size={row['batch_size']}: {row['message']}"
        )


def read(cfg: DictConfig) -> Benchmark:
    """The benchmark that a composed configuration asks for. Raises ConfigError."""
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    tree: dict[str, Any] = {str(key): value for key, value in resolved.items()}
    cls, config = part(tree, "backbone", Backbone)  # type: ignore[type-abstract]
    scale, device = typed(ScaleConfig, tree["scale"], "scale"), typed(DeviceConfig, tree["device"], "device")
    groups = ("backbone", "scale", "device", "objective")
    asked = typed(BenchmarkConfig, {key: value for key, value in tree.items() if key not in groups}, "")
    try:
        return Benchmark(cls, config, scale, device, asked)
    except ConfigError:
        raise
    except ValueError as error:  # widths that do not go together
        raise ConfigError(f"backbone: {error}") from None
