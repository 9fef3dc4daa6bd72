"""Settings that all optimizers share: learning rate, schedule, clipping, muP, average of the weights.

An optimizer is a subclass with additional settings, which creates the optimizer of a model in ``build``. A
YAML in ``conf/optimizer`` names it. A schedule is a module with a function ``factor``, given by its name in
``experiments/training/schedules`` or by its dotted path.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from archbench.experiments.config.old_names import current_name
from archbench.experiments.config.structured import is_own, load_class, pop_target, typed
from archbench.experiments.runtime.errors import nearest

if TYPE_CHECKING:
    import torch
    from torch import nn

SCHEDULES = Path(__file__).resolve().parents[1] / "training" / "schedules"


class Schedule(Protocol):
    """A module with a schedule of the learning rate."""

    SEVERAL_DECAYS: bool
    """True if ``decay_end_fractions`` may have more than one entry."""

    def factor(self, step: int, warmup: int, total: int, config: OptimizerConfig) -> float:
        """Return the learning rate at a step of ``total`` as a fraction of its peak, after the warm-up.

        Args:
            step: counted from 0, and at least ``warmup``.
            warmup: steps of the warm-up.
            total: steps of the run.
            config: settings of the optimizer.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of every optimizer, and of its schedule."""

    learning_rate: float = 3e-3
    """Peak learning rate."""
    weight_decay: float = 0.1
    """Decay of matrices; norms, biases and parameters that a backbone exempts are not decayed."""
    clip_norm: float | None = 1.0
    """Maximum norm of the gradients; null for no clipping."""
    schedule: str = "cosine"
    """After the warm-up: ``cosine`` or ``linear`` to the end, ``wsd`` (stable, then linear decay),
    ``one_minus_sqrt`` (stable, then a decay by 1 less a square root), ``constant``, or the dotted path of a
    module of the user."""
    warmup_fraction: float = 0.05
    """Fraction of the steps over which the learning rate increases linearly from zero."""
    decay_fraction: float = 0.2
    """Fraction of the steps over which ``wsd`` and ``one_minus_sqrt`` decay."""
    decay_end_fractions: list[float] = field(default_factory=lambda: [1.0])
    """Fractions of the steps at which a decay of ``wsd`` or ``one_minus_sqrt`` ends. After each but the last
    the learning rate is at its peak again, so that one run gives a decayed model for multiple budgets (WSD-S:
    Wen et al. 2024, arXiv 2410.05192). The model is validated at each."""
    min_lr_ratio: float = 0.1
    """Learning rate at the last step, as a fraction of its peak."""
    mup_base_width: int | None = None
    """Width at which the other settings were selected: they are transferred to ``backbone.d_model`` by muP
    (``experiments/training/mup.py``). Null trains every width with the same settings."""
    ema: float | None = None
    """Decay of a moving average of the weights, such as 0.9999, which evaluations and users of a checkpoint
    then use. It is smaller in the first steps. Null evaluates the weights."""

    def __post_init__(self) -> None:
        schedule = load_schedule(self.schedule)
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate={self.learning_rate} must be positive")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm={self.clip_norm} must be positive, or null to clip nothing")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay={self.weight_decay} must not be negative")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema={self.ema} must be between 0 and 1, or null")
        if self.mup_base_width is not None and self.mup_base_width < 1:
            raise ValueError(f"mup_base_width={self.mup_base_width} must be positive, or null")
        ends = list(self.decay_end_fractions)
        if not ends or ends[-1] != 1 or ends != sorted(set(ends)) or ends[0] <= 0:
            raise ValueError(
                f"decay_end_fractions={ends} must be increasing fractions of the steps, the last of them 1.0"
            )
        if ends != [1.0] and not schedule.SEVERAL_DECAYS:
            raise ValueError(
                f"decay_end_fractions={ends}: schedule={self.schedule} decays once; use "
                "schedule=wsd or schedule=one_minus_sqrt"
            )
        for name in ("warmup_fraction", "decay_fraction", "min_lr_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is a fraction: it must be in [0, 1]")

    def decayed_steps(self, total: int) -> list[int]:
        """Return the steps, of ``total``, at which the learning rate has decayed: a run may end at each."""
        return [max(1, round(fraction * total)) for fraction in self.decay_end_fractions]

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of a model.

        Its groups are those of ``parameter_groups``, with their ``peak`` and ``numbers``. Its ``state`` has
        all values that must be saved, as tensors by parameter.
        """
        # Not an abstract class: the YAML files extend the defaults of this class.
        raise NotImplementedError(f"{type(self).__name__} has no method build")

    def division(self, model: nn.Module) -> list[str]:
        """Return a line for each part of an optimizer of several parts, with its parameters."""
        return []


def read_optimizer(section: dict[str, object]) -> OptimizerConfig:
    """Return the optimizer that a section of a configuration names. Raises ConfigError."""
    values = dict(section)
    target = pop_target(values, OptimizerConfig, "optimizer", "the YAML")
    return typed(load_class(target, OptimizerConfig, "optimizer"), values, "optimizer")


def load_schedule(name: str) -> Schedule:
    """Return the module of a schedule. Raises ValueError."""
    if "." not in name:
        schedules = sorted(path.stem for path in SCHEDULES.glob("[a-z]*.py"))
        if name not in schedules:
            hint = nearest(name, schedules)
            listed = "" if "options: " in hint else f" (of {', '.join(schedules)})"
            raise ValueError(f"schedule={name!r}{hint}{listed}")
        return cast(Schedule, importlib.import_module(f"archbench.experiments.training.schedules.{name}"))
    name = current_name(name)
    if not is_own(name.partition(".")[0]):
        raise ValueError(f"schedule={name!r} is not a module of this project or of yours")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        raise ValueError(f"schedule={name!r}: there is no such module; is it on PYTHONPATH?") from None
    if not hasattr(module, "factor") or not hasattr(module, "SEVERAL_DECAYS"):
        raise ValueError(f"schedule={name!r}: the module needs a function factor, and SEVERAL_DECAYS")
    return cast(Schedule, module)
