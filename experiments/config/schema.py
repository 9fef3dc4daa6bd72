"""The sections of a configuration that belong to the harness, and the root that holds them all.

Each section is a frozen dataclass that checks itself; what belongs to a backbone,
an objective or a task is declared beside it. Importing this module does not import torch,
which takes seconds: a mistake in the configuration is reported before that.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

import experiments.config.yaml_source  # noqa: F401  # Hydra's reader of the YAML files
from experiments.config.parallel import ParallelConfig
from experiments.config.study import StudyConfig
from experiments.config.tracking import TrackingConfig
from experiments.runtime.errors import nearest

AXES = ("non_embedding", "active_non_embedding", "total", "flops")
PRECISIONS = ("fp32", "bf16")
AUTO = "auto"
MOST_LAYERS = 1024
"""Layers at most: solving for the width of more takes minutes."""
POLICIES = ("stop", "skip")
COMPILED = ("none", "blocks")


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """The size every backbone is brought to."""

    axis: str = "flops"
    """Quantity held equal: ``flops`` (training FLOPs per token at the task's length), ``non_embedding``
    (parameters without embedding and head), ``active_non_embedding`` (those of them that a token uses), or
    ``total``."""
    target: int | None = None
    """The size aimed at on that axis; null leaves every width as its YAML says. In YAML files and on the
    command line it is chosen among ``scale.targets``, which has one for each axis:
    ``scale.targets.flops=760000``, or ``scale.targets=null`` for none."""
    depth: int = 2
    """Layers of a transformer stack."""
    mixer_depth: int = 4
    """Layers that are a mixer alone, such as Mamba's: two weigh what one transformer layer does."""

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise ValueError(f"axis={self.axis!r}{nearest(self.axis, AXES)}")
        if self.target is not None and self.target < 1:
            raise ValueError(f"target={self.target} must be positive, or null")
        for name in ("depth", "mixer_depth"):
            if not 1 <= getattr(self, name) <= MOST_LAYERS:
                raise ValueError(f"{name}={getattr(self, name)} must lie in 1 to {MOST_LAYERS}")


@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """The training budget and the batch size."""

    tokens: int = 1_000_000
    """Training tokens, counted in the task's sequences. In YAML files and on the command line
    ``tokens_per_parameter`` may take its place (``tokens=null tokens_per_parameter=20``): so many tokens for
    each parameter of ``scale.targets.total``, equally many for all models of a scale."""
    batch_size: int = 32
    """Sequences for each optimizer step. In YAML files and on the command line ``batch_tokens`` may take its
    place (``batch_size=null batch_tokens=524288``): whole sequences of about so many tokens in all."""
    micro_batch_size: int | str | None = None
    """Sequences for each forward pass; null for all of them, ``auto`` for as many as fit: it is halved
    where memory runs out. Changes memory, not results."""

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.batch_size < 1:
            raise ValueError(f"tokens={self.tokens} and batch_size={self.batch_size} must be positive")
        size = self.micro_batch_size
        if (size != AUTO) if isinstance(size, str) else (size is not None and size < 1):
            raise ValueError(f"micro_batch_size={size!r} must be positive, or null, or {AUTO}")
        if isinstance(size, int) and size > self.batch_size:
            raise ValueError(
                f"micro_batch_size={size} is more than batch_size={self.batch_size}: null takes whole batches"
            )


MOST_THREADS = max(256, 2 * (os.cpu_count() or 1))
"""Threads of PyTorch at most: some thousands more and the process dies without a word."""
KERNELS = ("auto", "torch", "cpp")
"""Ways to compute what stands between matrix products; see ``architectures.kernels.pointwise``."""


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Device, precision, threads and kernels."""

    name: str = "auto"
    """``cpu``, ``cuda``, ``cuda:1`` ..., or ``auto`` for a GPU if there is one."""
    precision: str = "fp32"
    """``fp32``, or ``bf16`` for mixed precision with float32 weights."""
    threads: int | None = None
    """CPU threads; null leaves PyTorch's choice."""
    kernels: str = "auto"
    """Norms, activations, rotary positions and cross-entropy on a CPU: ``cpp`` (C++, one pass each),
    ``torch`` (PyTorch's own), ``auto`` for cpp where there is a compiler. On a GPU ``torch`` generates text
    without a CUDA graph."""
    force: bool = False
    """True trains although memory or time, as estimated beforehand, does not suffice."""
    peak_flops: float | None = None
    """Floating-point operations per second of the GPU that the run is planned for, at most, in ``precision``;
    null where it is not stated. The plan then shows no GPU hours."""
    memory_gib: float | None = None
    """GiB of memory of that GPU; null where it is not stated."""
    mfu: float = 0.4
    """Share of ``peak_flops`` that the plan counts with (model FLOPs utilisation)."""
    node_bandwidth: float | None = None
    """Bytes per second that this GPU sends to others of its node, in one direction; null where it is not
    stated. ``archbench cost simulate`` then shows no seconds."""
    network_bandwidth: float | None = None
    """Bytes per second that this GPU sends to other nodes, in one direction; null where it is not stated."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r}{nearest(self.precision, PRECISIONS)}")
        if self.kernels not in KERNELS:
            raise ValueError(f"kernels={self.kernels!r}{nearest(self.kernels, KERNELS)}")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ValueError(f"threads={self.threads} must lie in 1 to {MOST_THREADS}, or be null")
        for name in ("peak_flops", "memory_gib", "node_bandwidth", "network_bandwidth"):
            if (number := getattr(self, name)) is not None and number <= 0:
                raise ValueError(f"{name}={number} must be positive, or null")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"mfu={self.mfu} is a share: it must lie in (0, 1]")
        found = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", self.name)
        if found is None:
            raise ValueError(f"name={self.name!r}{nearest(self.name, ('auto', 'cpu', 'cuda', 'cuda:1'))}")
        if self.name.startswith("cuda"):
            import torch

            count = torch.cuda.device_count()
            if int(found[1] or 0) >= count:
                raise ValueError(f"name={self.name!r}: this machine has {count} CUDA devices; use device=cpu")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Logging, evaluation, checkpoints and failures; evaluation sizes and ``non_finite`` affect results."""

    log_every: int = 20
    """Steps between console lines and rows of metrics.jsonl."""
    evaluate_every: int = 200
    """Steps between evaluations on the validation split."""
    validation_examples: int | None = None
    """Sequences of each evaluation on the validation split, drawn at random over all of it; null for 256 of
    them during training, and after it the whole split, from which learning rates are chosen."""
    test_examples: int | None = None
    """Sequences of the final evaluation on the test split, drawn at random over all of it; null for the whole
    split, or of a generated task as many as bring the standard error of an accuracy to 0.5 points."""
    extra_evaluations: list[str] = field(default_factory=list)
    """Further tests after training, each the settings of the task that differ: ``"sequence_length=256"``."""
    checkpoint_every: int = 200
    """Steps between checkpoints; the last step always makes one."""
    keep_checkpoints: int = 2
    """Checkpoints kept, newest first."""
    non_finite: str = "stop"
    """A loss or gradient that is no finite number: ``stop`` ends the run as diverged, ``skip`` leaves the
    step out, at most 5 in a row and 20 in all. Set it for every arm of a comparison alike."""
    compile: str = "none"
    """``blocks`` compiles each block of the backbone with ``torch.compile`` for training: the first steps
    take longer, the others less. Changes results by rounding."""
    preemption_margin_seconds: int = 120
    """Seconds before the end of a SLURM job at which the run saves itself and stops."""
    step_timeout_seconds: int = 300
    """A step that takes longer than this, and than ten times the median step, ends the process."""

    def __post_init__(self) -> None:
        if self.non_finite not in POLICIES:
            raise ValueError(f"non_finite={self.non_finite!r}{nearest(self.non_finite, POLICIES)}")
        if self.compile not in COMPILED:
            raise ValueError(f"compile={self.compile!r}{nearest(self.compile, COMPILED)}")
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Names:
    """The YAML files chosen in each group; they name a cell, and nothing is decided by them."""

    backbone: str = MISSING
    objective: str = MISSING
    task: str = MISSING
    scale: str = MISSING


@dataclass
class Schema:
    """The root of the configuration, as Hydra checks it while composing.

    The parts are ``Any`` here because Hydra would make frozen dataclasses read-only; ``read_settings``
    checks each against its own dataclass. YAML files say only what they choose: those that name a class in
    ``_target_`` start from the defaults of its settings (``experiments.config.yaml_source``), those of other
    sections from ``/section/NAME@_here_``.
    """

    names: Any = MISSING
    backbone: Any = MISSING
    objective: Any = MISSING
    task: Any = MISSING
    scale: Any = MISSING
    budget: Any = MISSING
    optimizer: Any = MISSING
    device: Any = MISSING
    parallel: Any = MISSING
    trainer: Any = field(default_factory=lambda: dataclasses.asdict(TrainerConfig()))
    tracking: Any = MISSING
    study: Any = field(default_factory=lambda: dataclasses.asdict(StudyConfig()))
    init_from: str | None = None
    continue_from: str | None = None
    seed: int = 0
    runs: str = "runs"


ConfigStore.instance().store(name="schema", node=Schema)
IN_ITS_PLACE = {"budget": dict.fromkeys(("tokens_per_parameter", "batch_tokens"))}
"""Keys that become others when a configuration is read (``experiments.config.size_target``), by section."""
for _name, _config in {
    "budget": BudgetConfig, "device": DeviceConfig, "parallel": ParallelConfig, "tracking": TrackingConfig,
}.items():  # fmt: skip
    _node = dataclasses.asdict(_config()) | IN_ITS_PLACE.get(_name, {})
    ConfigStore.instance().store(group="section", name=_name, node=_node)
