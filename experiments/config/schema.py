"""The sections of a configuration that belong to the harness, and the root of the configuration.

Each section is a frozen dataclass that validates itself. The settings of a backbone, an objective or a task
are declared in its module.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

import archbench.experiments.config.yaml_files  # noqa: F401  # Hydra's reader of the YAML files
from archbench.experiments.config.study import StudyConfig
from archbench.experiments.runtime.errors import nearest

AXIS_UNITS = {
    "non_embedding": "parameters without embedding and LM head",
    "active_non_embedding": "those of them that a token uses",
    "total": "parameters in all",
    "flops": "training FLOPs per token",
}
"""Unit of a size, by axis."""
PRECISIONS = ("fp32", "bf16")
KERNELS = ("auto", "torch", "cpp")
"""Implementations of operations between matrix products; see ``architectures.fast_paths``."""
AUTO = "auto"
MOST_LAYERS = 1024
"""Maximum number of layers: solving for the width of more takes minutes."""
MOST_THREADS = max(256, 2 * (os.cpu_count() or 1))
"""Maximum threads of PyTorch: with some thousands the process ends without a message."""
POLICIES = ("stop", "skip")
COMPILED = ("none", "blocks")
STRATEGIES = ("none", "ddp", "fsdp")
CHECKPOINTED = ("none", "block")

SINKS = {
    "online": "archbench.experiments.tracking.wandb.WandbSink",
    "offline": "archbench.experiments.tracking.wandb.WandbSink",
    "tensorboard": "archbench.experiments.tracking.tensorboard.TensorBoardSink",
}
"""Class of each mode of tracking, imported on first use. A new one is a file, a YAML and a line here."""
MODES = ("off", *SINKS)
MOST_TAG, MOST_PROJECT = 64, 128
"""Characters of a tag and of the name of a project of W&B, at most."""
TAG_KINDS = ("arch", "objective", "task", "size", "stage", "status")
"""Prefixes of the tags that a run sets itself, as in ``arch:mamba``: one tag of each."""


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """The size that the width of every backbone is chosen for."""

    axis: str = "flops"
    """Quantity that is equal for all models: ``flops`` (training FLOPs per token at the task's length),
    ``non_embedding`` (parameters without embedding and head), ``active_non_embedding`` (those of them that a
    token uses), or ``total``."""
    target: int | None = None
    """Target size on that axis; null keeps the widths of the YAML files. In YAML files and on the
    command line it is selected from ``scale.targets``, which has one for each axis:
    ``scale.targets.flops=760000``, or ``scale.targets=null`` for none."""
    depth: int = 2
    """Layers of a transformer stack."""
    mixer_depth: int = 4
    """Layers that consist of a mixer only, such as Mamba's: two have the size of one transformer layer."""

    def __post_init__(self) -> None:
        if self.axis not in AXIS_UNITS:
            raise ValueError(f"axis={self.axis!r}{nearest(self.axis, AXIS_UNITS)}")
        if self.target is not None and self.target < 1:
            raise ValueError(f"target={self.target} must be positive, or null")
        for name in ("depth", "mixer_depth"):
            if not 1 <= getattr(self, name) <= MOST_LAYERS:
                raise ValueError(f"{name}={getattr(self, name)} must be in 1 to {MOST_LAYERS}")


@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """The training budget and the batch size."""

    tokens: int = 1_000_000
    """Training tokens, counted in the task's sequences. In YAML files and on the command line
    ``tokens_per_parameter`` may replace it (``tokens=null tokens_per_parameter=20``): tokens for each
    parameter of ``scale.targets.total``, equally many for all models of a scale."""
    batch_size: int = 32
    """Sequences for each optimizer step. In YAML files and on the command line ``batch_tokens`` may replace
    it (``batch_size=null batch_tokens=524288``): full sequences with about this many tokens in total."""
    micro_batch_size: int | str | None = None
    """Sequences for each forward pass; null for all of them, ``auto`` for as many as fit: it is halved
    if memory runs out. Changes memory, and results by rounding only; but dropout, stochastic depth and router
    jitter are drawn for each of them, so with these it acts like another seed."""

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.batch_size < 1:
            raise ValueError(f"tokens={self.tokens} and batch_size={self.batch_size} must be positive")
        size = self.micro_batch_size
        if (size != AUTO) if isinstance(size, str) else (size is not None and size < 1):
            raise ValueError(f"micro_batch_size={size!r} must be positive, or null, or {AUTO}")
        if isinstance(size, int) and size > self.batch_size:
            raise ValueError(
                f"micro_batch_size={size} is more than batch_size={self.batch_size}: null is a full batch"
            )


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Device, precision, threads and kernels."""

    name: str = "auto"
    """``cpu``, ``cuda``, ``cuda:1`` ..., or ``auto`` for a GPU if there is one."""
    precision: str = "fp32"
    """``fp32``, or ``bf16`` for mixed precision with float32 weights."""
    threads: int | None = None
    """CPU threads; null for PyTorch's default."""
    kernels: str = "auto"
    """Norms, activations, rotary positions and cross-entropy on a CPU: ``cpp`` (C++, one pass each),
    ``torch`` (PyTorch), ``auto`` for cpp if there is a compiler. On a GPU ``torch`` generates text
    without a CUDA graph."""
    deterministic: bool = False
    """True uses PyTorch's deterministic algorithms, also on a GPU, and no kernels of mamba-ssm and fla with
    ``scan=auto``. An operation that has none ends the run."""
    force: bool = False
    """True trains although the estimate of memory or time exceeds what is available."""
    peak_flops: float | None = None
    """Peak floating-point operations per second of the GPU that the run is planned for, in ``precision``;
    null if unknown. The plan then shows no GPU hours."""
    memory_gib: float | None = None
    """GiB of memory of that GPU; null if unknown."""
    mfu: float = 0.4
    """Fraction of ``peak_flops`` that the plan assumes (model FLOPs utilisation)."""
    node_bandwidth: float | None = None
    """Bytes per second from this GPU to another GPU of its node, in one direction; null if unknown.
    ``archbench cost simulate`` then shows no seconds."""
    network_bandwidth: float | None = None
    """Bytes per second from this GPU to other nodes, in one direction; null if unknown."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r}{nearest(self.precision, PRECISIONS)}")
        if self.kernels not in KERNELS:
            raise ValueError(f"kernels={self.kernels!r}{nearest(self.kernels, KERNELS)}")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ValueError(f"threads={self.threads} must be in 1 to {MOST_THREADS}, or be null")
        for name in ("peak_flops", "memory_gib", "node_bandwidth", "network_bandwidth"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name}={value} must be positive, or null")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"mfu={self.mfu} is a fraction: it must be in (0, 1]")
        match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", self.name)
        if match is None:
            raise ValueError(f"name={self.name!r}{nearest(self.name, ('auto', 'cpu', 'cuda', 'cuda:1'))}")
        if self.name.startswith("cuda"):
            import torch

            count = torch.cuda.device_count()
            if int(match[1] or 0) >= count:
                raise ValueError(f"name={self.name!r}: this machine has {count} CUDA devices; use device=cpu")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Logging, evaluation, checkpoints and failures; evaluation sizes and ``non_finite`` affect results."""

    log_every: int = 20
    """Steps between console lines and rows of metrics.jsonl."""
    evaluate_every: int = 200
    """Steps between evaluations on the validation split."""
    validation_examples: int | None = None
    """Sequences of each evaluation on the validation split, sampled from all of it; null for 256 of
    them during training, and for the full split after training, from which learning rates are chosen."""
    test_examples: int | None = None
    """Sequences of the final evaluation on the test split, sampled from all of it; null for the full
    split, or for a generated task as many as reduce the standard error of an accuracy to 0.5 points."""
    extra_evaluations: list[str] = field(default_factory=list)
    """Additional tests after training, each with the settings of the task that differ:
    ``"sequence_length=256"``."""
    checkpoint_every: int = 200
    """Steps between checkpoints; the last step always writes one."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep."""
    non_finite: str = "stop"
    """If a loss or gradient is not finite: ``stop`` ends the run as diverged, ``skip`` skips the
    step, at most 5 in a row and 20 in total. Use the same value for every model of a comparison."""
    compile: str = "none"
    """``blocks`` compiles each block of the backbone with ``torch.compile`` for training: the first steps
    take longer, later steps less. Changes results by rounding."""
    preemption_margin_seconds: int = 120
    """Seconds before the end of a SLURM job at which the run saves a checkpoint and stops."""
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
        for name in ("validation_examples", "test_examples"):
            if getattr(self, name) == 1:
                raise ValueError(f"{name}=1 has no standard error: give at least 2, or null")


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Parallelism over the processes that ``torchrun`` or ``srun`` starts for one run.

    With one process only activation checkpointing applies. The digest of a run does not depend on this
    section: results agree to rounding, as with micro-batches.
    """

    strategy: str = "none"
    """``ddp``: every process has the full model and a part of the batch. ``fsdp``: it also stores only a part
    of the weights, gradients and moments, and gathers a block when it needs it. ``none`` is ddp if there
    are multiple processes."""
    replicate: int = 1
    """Under fsdp, number of process groups with a full sharded model each (HSDP): weights are gathered
    within a group, and gradients reduced between groups. With a group for each node no weights cross the
    network."""
    tensor: int = 1
    """Degree of tensor parallelism: processes among which attention and feed-forward layers are divided."""
    expert: int = 1
    """Degree of expert parallelism: processes among which the experts of a layer are divided."""
    activation_checkpointing: str = "none"
    """``block`` stores only the input of each block and recomputes the rest: less memory, a third more
    work."""
    nodes: int | None = None
    """Nodes that ``archbench slurm submit`` requests and ``archbench plan`` assumes, for each run; null
    for those of the cluster's file, and for one in a plan. Training uses the processes that were started."""
    gpus_per_node: int | None = None
    """GPUs on each of these nodes, with a process for each; null as above. With ``device=cpu`` it is the
    number of processes only."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy={self.strategy!r}{nearest(self.strategy, STRATEGIES)}")
        if (value := self.activation_checkpointing) not in CHECKPOINTED:
            raise ValueError(f"activation_checkpointing={value!r}{nearest(value, CHECKPOINTED)}")
        for name in ("replicate", "tensor", "expert"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("nodes", "gpus_per_node"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1, or null")
        if self.tensor > 1 and self.expert > 1:
            raise ValueError(
                f"tensor={self.tensor} and expert={self.expert} cannot be combined: set one to 1"
            )
        if self.replicate > 1 and self.strategy != "fsdp":
            raise ValueError(
                f"replicate={self.replicate} needs strategy=fsdp, not {self.strategy}: under ddp every "
                "process has a full model already"
            )
        if self.tensor > 1 and self.strategy == "ddp":
            raise ValueError(f"tensor={self.tensor} needs strategy=fsdp, not ddp")

    @property
    def processes(self) -> int:
        """Return the processes that the run is planned for: one for each GPU of its nodes."""
        return (self.nodes or 1) * (self.gpus_per_node or 1)


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where the metrics of a run are mirrored."""

    mode: str = "off"
    """``off``; ``online`` (uploads to W&B while training), ``offline`` (W&B's files in the run folder) or
    ``tensorboard`` (event files in the run folder)."""
    project: str | None = None
    """W&B project; None takes the name of the study."""
    entity: str | None = None
    """W&B user or team; None takes the default of the account."""
    tags: list[str] = field(default_factory=list)
    """W&B tags, in addition to those that every run has."""
    artifacts: bool = False
    """Log the final model of a complete run as an artifact of W&B: its weights are uploaded."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(
                f"tracking.mode={self.mode!r} is not one of {', '.join(MODES)} "
                f'(in YAML, put "off" in quotes: the bare word means false)'
            )
        if self.project is not None and not re.fullmatch(rf"[^/\\#?%:]{{1,{MOST_PROJECT}}}", self.project):
            raise ValueError(
                f"tracking.project={self.project!r}: the name of a project of W&B has 1 to {MOST_PROJECT} "
                "characters, and none of /\\#?%:"
            )
        for tag in self.tags:
            if not tag.strip() or len(tag) > MOST_TAG:
                raise ValueError(
                    f"tracking.tags={tag!r}: W&B takes tags of 1 to {MOST_TAG} characters, and this one has "
                    f"{len(tag)}: shorten it, or leave it out"
                )
            if tag.partition(":")[0] in TAG_KINDS and ":" in tag:
                raise ValueError(f"tracking.tags={tag!r}: tags with this prefix are set by the run itself")


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of the YAML files selected in each group. They name a run; the result does not depend on them."""

    backbone: str = MISSING
    objective: str = MISSING
    task: str = MISSING
    scale: str = MISSING


@dataclass
class Schema:
    """The root of the configuration, as Hydra checks it while composing.

    The sections are ``Any`` here because Hydra would make frozen dataclasses read-only; ``read_settings``
    validates each by its dataclass. YAML files have only the values that differ from the defaults: files with
    a ``_target_`` extend the defaults of its settings (``experiments.config.yaml_files``), those of other
    sections ``/section/NAME@_here_``.
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
ALTERNATIVES = {"budget": dict.fromkeys(("tokens_per_parameter", "batch_tokens"))}
"""Keys that are replaced by others when a configuration is read (``experiments.config.sections``)."""
for _name, _config in {
    "budget": BudgetConfig, "device": DeviceConfig, "parallel": ParallelConfig, "tracking": TrackingConfig,
}.items():  # fmt: skip
    _node = dataclasses.asdict(_config()) | ALTERNATIVES.get(_name, {})
    ConfigStore.instance().store(group="section", name=_name, node=_node)
