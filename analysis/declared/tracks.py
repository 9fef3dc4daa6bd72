"""The rules of a track, read from the YAML files that its runs are composed of.

A track NAME is two studies, ``conf/study/track/NAME.yaml`` with the test seeds and ``NAME_rates.yaml`` with
the tuning runs, and a folder ``conf/track/NAME/`` with a YAML for each workload. The laptop track is
``study=compare``, whose workloads are tasks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archbench.analysis.declared.tuned_study import TunedStudy
from archbench.experiments.config import CONF
from archbench.experiments.config.structured import typed
from archbench.experiments.config.study import WorkloadConfig
from archbench.experiments.runtime.errors import ConfigError, nearest
from archbench.experiments.runtime.yaml_state import read_yaml

MAIN = "laptop"
"""The track whose study is ``compare``."""


@dataclass(kw_only=True)
class Workload(WorkloadConfig):
    """A workload of a track: its name, its target and the variants it is scored on."""

    name: str
    title: str = ""
    """The first line of its YAML."""


@dataclass(frozen=True, kw_only=True)
class Track(TunedStudy):
    """A track."""

    name: str
    group: str
    """The swept key that chooses the workload."""
    workloads: list[Workload]
    backbones: list[str]
    """Its models."""
    seeds: list[int]
    """Test seeds."""
    tuning_seeds: list[int]
    """Seeds of the tuning runs."""
    protocol: str | None
    """Version of the rules of tuning (``study.protocol``)."""
    tuned: bool
    """True if runs read their learning rates from a file that the track writes (``study.tuned``)."""
    stored: str | None
    """The stored frame with runs that count as done, relative to the root of the checkout."""
    miniature: list[str]
    """Overrides that shrink every run to a few seconds."""

    def workload(self, name: str) -> Workload:
        """Return the workload with a name. Raises ValueError if the track has no such workload."""
        for workload in self.workloads:
            if workload.name == name:
                return workload
        names = [workload.name for workload in self.workloads]
        raise ValueError(
            f"workloads={name}: the track {self.name} has {', '.join(names)}{nearest(name, names)}"
        )

    def words(self, study: str, workload: str, backbones: Sequence[str], *more: str) -> list[str]:
        """Return the command line of one workload's runs, in the study or in the tuning study."""
        choice = f"{self.group}={workload}"
        return ["-m", f"study={study}", choice, f"backbone={','.join(backbones)}", *more]


def track_names(roots: Sequence[Path] = (CONF,)) -> list[str]:
    """Return the names of all tracks with YAML files in the folders."""
    names = sorted({path.stem for root in roots for path in (root / "study" / "track").glob("*.yaml")})
    return [MAIN, *(path for path in names if not path.endswith("_rates"))]


def read_track(name: str, config_dir: str = "") -> Track:
    """Return a track. Raises ValueError if no track has this name.

    Args:
        name: ``laptop``, or that of a YAML in ``study/track/``.
        config_dir: a folder of further YAML files, as Hydra's ``--config-dir``.
    """
    roots = [*([Path(config_dir)] if config_dir else []), CONF]
    study = "compare" if name == MAIN else f"track/{name}"
    path = _find(roots, f"study/{study}.yaml")
    if path is None:
        names = track_names(roots)
        raise ValueError(f"'{name}' is no track{nearest(name, names)}")
    rates_path = _find(roots, f"study/{study}_rates.yaml")
    if rates_path is None:
        raise ValueError(
            f"the track {name} has no conf/study/{study}_rates.yaml, the study of its tuning runs"
        )
    tree, rates_tree = read_yaml(path), read_yaml(rates_path)
    params, trials = tree["hydra"]["sweeper"]["params"], rates_tree["hydra"]["sweeper"]["params"]
    group = next((key for key in params if key.startswith("track/")), "task")
    return Track(
        name=name, study=study,
        folder=tree["study"]["name"], rates_folder=rates_tree["study"]["name"],
        group=group,
        workloads=[_workload(roots, group, workload_name) for workload_name in _listed(params[group])],
        backbones=_listed(params["backbone"]),
        seeds=[int(seed) for seed in _listed(params["seed"])],
        learning_rates=[float(rate) for rate in _listed(trials.get("optimizer.learning_rate", "")) if rate],
        tuning_seeds=[int(seed) for seed in _listed(trials["seed"])],
        protocol=tree["study"].get("protocol"),
        fixed_grid=bool(tree["study"].get("fixed_grid")),
        tuned="tuned" in tree["study"],
        stored=tree["study"].get("stored"),
        miniature=list(tree["study"].get("miniature") or []),
    )  # fmt: skip


def check_backbones(names: Sequence[str], config_dir: str = "") -> None:
    """Raise ConfigError if a backbone has no YAML; classes and patterns are left to Hydra."""
    roots = [*([Path(config_dir)] if config_dir else []), CONF]
    for name in names:
        if re.fullmatch(r"[\w/-]+", name) and _find(roots, f"backbone/{name}.yaml") is None:
            options = {path.stem for root in roots for path in (root / "backbone").glob("*.yaml")}
            raise ConfigError(
                f"backbone={name}: there is no conf/backbone/{name}.yaml{nearest(name, options)}"
            )


def _workload(roots: Sequence[Path], group: str, name: str) -> Workload:
    """Return a workload from its YAML; for a task without a YAML, only its name is set."""
    path = _find(roots, f"{group}/{name}.yaml")
    if group == "task" or path is None:
        return Workload(name=name)
    title = [line for line in path.read_text().splitlines() if line.startswith("# ")][1].removeprefix("# ")
    values = (read_yaml(path).get("study") or {}).get("workload", {})
    return typed(Workload, {"name": name, "title": title, **values}, "study.workload")


def _find(roots: Sequence[Path], name: str) -> Path | None:
    return next((root / name for root in roots if (root / name).exists()), None)


def _listed(value: Any) -> list[str]:
    """Return the values that a sweeper's ``a,b,c`` lists."""
    return [part.strip() for part in str(value).split(",")]
