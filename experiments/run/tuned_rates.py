"""Learning rates that ``analysis.rates`` chose, for a study that confirms them on fresh seeds.

A study selects them with ``study.tuned``, the path of a rates.yaml. A run then gets the rate of its
task, scale and backbone, and is rejected under a seed that the rates were chosen with: the best of
several runs is in part the luckiest, and would be again. A rate at the edge of its grid is rejected, unless
``study.fixed_grid`` states that every model has the same trials, and no more of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from archbench.experiments.config import CONF
from archbench.experiments.config.structured import typed
from archbench.experiments.config.study import TuningConfig, study_command, train_command
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.yaml_state import read_yaml

Key = tuple[str, str, str, float | None, str]
"""Task, scale, axis, target and backbone of an arm."""


@dataclass(frozen=True, kw_only=True)
class TunedArm:
    """A backbone at one size on one task, and the learning rate chosen for it."""

    task: str
    """Name of the task."""
    scale: str
    """Name of the scale."""
    axis: str
    """``scale.axis``."""
    target: float | None
    """Size that it was brought to on that axis; null where widths are given."""
    backbone: str
    """Name of the backbone."""
    learning_rate: float
    """The best rate."""
    bracketed: bool
    """True if lower and higher learning rates were tried too."""
    metric: str
    """Metric on the validation split by which it was the best."""
    validation: float
    """That metric, at the best rate."""
    decades: float
    """Of learning rate, within 5% of the best result."""
    undecided: list[float] = field(default_factory=list)
    """Neighbouring rates that may be as good."""
    batch_size: int | None = None
    """The best number of sequences per step; null if one number was tried."""
    tuning: TuningConfig | None = None
    """The search, if it is that of a protocol."""

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ValueError(f"{_words(self.key)}: learning_rate={self.learning_rate} must be positive")

    @property
    def key(self) -> Key:
        return self.task, self.scale, self.axis, self.target, self.backbone


@dataclass(frozen=True, kw_only=True)
class TunedRates:
    """A rates.yaml."""

    study: str
    """The study that swept the rates."""
    seeds: list[int]
    """The seeds it trained with."""
    arms: list[TunedArm]
    """The chosen learning rates."""

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0:
            raise ValueError(f"seeds={self.seeds} must be those that the rates were chosen with")
        keys = [arm.key for arm in self.arms]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"arms has two entries for {_words(twice[0])}: leave one")


def apply_tuned_rate(tree: dict[str, Any], *, optional: bool = False) -> None:
    """Fill the learning rate of ``study.tuned`` into a configuration that has it. Raises ConfigError.

    Args:
        tree: the configuration, which is changed.
        optional: leave a configuration as it is as long as the file is not there, to price it.
    """
    study = dict(tree["study"])
    if study.get("tuned") is None:
        return
    name = str(study.pop("tuned"))
    path = Path(name)
    if not path.exists() and (CONF.parent / path).exists():
        path = CONF.parent / path
    if optional and not path.exists():
        return
    rates = read_rates(path)
    if tree["seed"] in rates.seeds:
        raise ConfigError(
            f"seed={tree['seed']}: study={rates.study} chose the rates of {path} with it, so it would "
            f"flatter them; use seeds other than {', '.join(map(str, rates.seeds))}"
        )
    target = tree["scale"].get("target")
    key = (
        tree["names"]["task"], tree["names"]["scale"], tree["scale"]["axis"],
        None if target is None else float(target), tree["names"]["backbone"],
    )  # fmt: skip
    arms_by_key = {arm.key: arm for arm in rates.arms}
    if key not in arms_by_key:
        arms = "; ".join(_words(arm.key) for arm in rates.arms)
        raise ConfigError(f"study.tuned={path} has no rate for {_words(key)}; it has {arms or 'none'}")
    arm = arms_by_key[key]
    if not arm.bracketed and not study.get("fixed_grid"):
        swept = path.parent.parent
        swept = swept if swept.name == rates.study else Path("runs") / rates.study
        raise ConfigError(
            f"study.tuned={path}: the best rate of {_words(key)}, {arm.learning_rate:g}, was at the edge "
            f"of its grid: extend it with {study_command('rates', swept, '--extend')}"
        )
    _check_overrides(path, arm)
    tree["optimizer"] = {**tree["optimizer"], "learning_rate": arm.learning_rate}
    if arm.batch_size is not None:
        tree["budget"] = {**tree["budget"], "batch_size": arm.batch_size}
    # The record of the run has the rate, since the file may change or be removed.
    tree["study"] = {**study, "rate_from": name}
    if arm.tuning is not None:
        tree["study"]["tuning"] = asdict(arm.tuning)


def _check_overrides(path: Path, arm: TunedArm) -> None:
    """Raise ConfigError if the command sets what the file sets too."""
    chosen = {"optimizer.learning_rate": "the rate"}
    if arm.batch_size is not None:
        chosen |= {"budget.batch_size": "the batch size", "budget.batch_tokens": "the batch size"}
    for word in HydraConfig.get().overrides.task:
        if what := chosen.get(word.partition("=")[0].lstrip("+~")):
            raise ConfigError(
                f"{word} together with study.tuned={path}, which sets {what}: leave it out, or set both by "
                "hand with study.tuned=null optimizer.learning_rate=..."
            )


def _commands(path: Path) -> str:
    """Return the commands that write a rates.yaml, which is RUNS/STUDY/analysis/rates.yaml."""
    study = path.parent.parent
    if not (command := train_command(study)):
        study = Path("runs") / "tune"
        command = train_command(study)
    if command.startswith("archbench track"):
        return f"{command} writes it"
    return f"{command}, then {study_command('rates', study)}, writes {study}/analysis/rates.yaml"


def read_rates(path: Path) -> TunedRates:
    """A rates.yaml. Raises ConfigError where it is missing or something else."""
    if not path.exists():
        raise ConfigError(f"study.tuned={path} is not there: {_commands(path)}")
    status = path.stat()
    return _parsed(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _parsed(path: Path, modified: int, size: int) -> TunedRates:
    """Return the content of a file, once for all runs of a sweep as long as the file is the same."""
    values = read_yaml(path, f"study.tuned={path} must be a file of archbench rates")
    try:
        return typed(TunedRates, values, "")
    except ConfigError as error:
        raise ConfigError(f"study.tuned={path}: {error}") from None


def _words(key: Key) -> str:
    task, scale, axis, target, backbone = key
    size = "" if target is None else f" scale.axis={axis} scale.targets.{axis}={target:.0f}"
    return f"task={task} scale={scale}{size} backbone={backbone}"
