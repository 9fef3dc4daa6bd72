"""Cells of a study that are not trained: those rejected before they begin, and those with a stored result.

A rejected cell leaves a record, so that it stays a row of its study. Where the settings could be read, the
record is in the folder of the run. Else the folder is named by the words of the cell.
``runs/STUDY/.refused/`` has a file for each, named by these words too: the record is removed when the same
words begin a run, which may have another folder by then.

A study names a frame of results with ``study.stored``, a Parquet file of the rows of ``analysis.load.study``,
relative to the root of the checkout. A run whose digest and seed it contains with a final status is not
trained again, so that a study continues on another machine, and a model that is added to it is trained alone.
"""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archbench.experiments.config import CONF
from archbench.experiments.config.digest import settings_digest
from archbench.experiments.config.structured import check_file_name
from archbench.experiments.runtime import run_lock
from archbench.experiments.runtime.atomic_io import write_json, write_text
from archbench.experiments.runtime.errors import (
    CheckpointError,
    ConfigError,
    LockedError,
    RunError,
    nearest,
    nearest_folder,
)
from archbench.experiments.runtime.json_state import read_json
from archbench.experiments.runtime.machine import process_rank
from archbench.experiments.runtime.run_status import FINAL, RunStatus
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.tracking.run_files import RunResult
from archbench.experiments.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from archbench.experiments.run.settings import (
        Settings,  # imports torch, which a mistake need not wait for
    )


UNKNOWN = "unknown"
GROUPS = ("backbone", "objective", "task", "scale")
INDEX = ".refused"
UNRECORDED = (LockedError, CheckpointError)
"""Another process writes the run, or nothing can be written."""


@dataclass(frozen=True, kw_only=True)
class RequestedCell:
    """A cell as its overrides describe it, whether they compose or not."""

    study: Path
    """``runs/STUDY``."""
    words: list[str]
    """Overrides of the cell."""
    seed: int
    """A number below 0 is none: the mistake is only printed, as a record belongs to a seed."""
    names: dict[str, str]
    """Names of the YAML files of ``GROUPS``, or what an override names instead."""
    config: DictConfig | None
    """The composed configuration."""
    in_study: bool
    """False for a single run outside of studies: its mistakes are only printed."""

    @classmethod
    def composed(cls, cfg: DictConfig) -> RequestedCell:
        """Return the cell that Hydra runs now."""
        hydra = HydraConfig.get()
        study = _text(cfg, "study.name")
        return cls(
            study=_folder(cfg, study),
            words=_deciding(hydra.overrides.task),
            seed=int(cfg.seed),
            names={group: redact(_text(cfg, f"names.{group}")) for group in GROUPS},
            config=cfg,
            in_study=hydra.mode == RunMode.MULTIRUN or study != "single",
        )

    @classmethod
    def uncomposed(cls, sweep: DictConfig, words: Sequence[str]) -> RequestedCell:
        """Return a cell that cannot be composed; ``sweep`` is the configuration without its overrides."""
        given = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
        return cls(
            study=_folder(sweep, given.get("study.name", _text(sweep, "study.name"))),
            words=_deciding(words),
            seed=_seed(given.get("seed", str(sweep.seed))),
            names={g: redact(given.get(g, _text(sweep, f"hydra.runtime.choices.{g}"))) for g in GROUPS},
            config=None,
            in_study=True,
        )

    @property
    def digest(self) -> str:
        """Return eight hexadecimal digits of the overrides without the seed."""
        return settings_digest({"words": [word for word in self.words if not word.startswith("seed=")]})

    @property
    def name(self) -> str:
        """Return the cell, as in the name of a run folder."""
        words = (self.names[group] for group in ("backbone", "task", "scale"))
        return "-".join(re.sub(r"\W", "_", word) for word in words)

    @property
    def index(self) -> Path:
        """Return the file with the path of the cell's record."""
        return self.study / INDEX / f"{self.digest}-s{self.seed}.json"

    def refuse(self, error: RunError, settings: Settings | None = None) -> None:
        """Write the record of a cell that ended before it began; leave a run that has begun as it is.

        Args:
            error: the reason.
            settings: of the run, where they could be read.
        """
        if not self.in_study or isinstance(error, UNRECORDED) or process_rank().rank != 0:
            return
        if self.seed < 0:
            return
        if not _is_file_name(self.study.name):  # the mistake itself: it may lead out of the folder of runs
            return
        by_overrides = self.study / f"{self.name}-{self.digest}" / f"s{self.seed}"
        run = RunFolder(by_overrides if settings is None else settings.folder)
        if _begun(run):
            return
        config = _yaml(self.config) if settings is None else _as_yaml(settings.resolved)
        refused = error.exit_code in (2, 3)
        cell, _, digest = run.root.parent.name.rpartition("-")
        result = RunResult(
            format=1,
            key=f"{cell}-{digest}-s{self.seed}",
            study=self.study.name,
            cell=cell,
            digest=digest,
            seed=self.seed,
            backbone=self.names["backbone"],
            objective=self.names["objective"],
            task=self.names["task"],
            scale=self.names["scale"],
            status=RunStatus.REFUSED if refused else RunStatus(error.status),
            exit_code=error.exit_code,
            message=redact(str(error)),
            words=redact(self.words),
        )
        run.root.mkdir(parents=True, exist_ok=True)
        if config is not None:
            write_text(run.root / "config.yaml", config)
        run.finish(result)
        self.index.parent.mkdir(exist_ok=True)
        write_json(self.index, {"folder": str(run.root.relative_to(self.study))})

    def forget(self, run_folder: Path) -> None:
        """Remove the record of a refusal of this cell, which is trained now in ``run_folder``."""
        if process_rank().rank != 0 or not self.index.exists():
            return
        try:
            named = read_json(self.index, dict[str, str]) or {}
        except CheckpointError:
            named = {}
        folder = self.study / named.get("folder", run_folder.name)
        if folder.resolve() != run_folder.resolve() and is_refused(RunFolder(folder)):
            shutil.rmtree(folder)
            if not any(folder.parent.iterdir()):
                folder.parent.rmdir()
        self.index.unlink(missing_ok=True)
        if not any(self.index.parent.iterdir()):
            self.index.parent.rmdir()


def _seed(text: str) -> int:
    """Return a seed that overrides name, -1 for something else."""
    return int(text) if text.isdecimal() else -1


def is_refused(run: RunFolder) -> bool:
    """Return True for a folder that holds nothing but the record of a refusal."""
    result = run.result()
    return result is not None and result.status == RunStatus.REFUSED


def refusals(study: Path) -> list[tuple[Path, RunResult]]:
    """Return folder and result of each refusal of a study."""
    records = []
    for index in sorted((study / INDEX).glob("*.json")):
        try:
            named = read_json(index, dict[str, str]) or {}
            folder = study / named.get("folder", ".")
            result = RunFolder(folder).result()
        except RunError:  # a damaged record is a separate row
            continue
        if result is not None and result.status == RunStatus.REFUSED:
            records.append((folder, result))
    return records


def refuse_uncomposed(sweep: DictConfig, words: Sequence[str], message: str) -> None:
    """Write the record of a run of a sweep that cannot be composed."""
    RequestedCell.uncomposed(sweep, words).refuse(ConfigError(message))


def _folder(cfg: DictConfig, study: str) -> Path:
    """Return ``runs/STUDY``; ``runs/..``, which gets no record, where the study has no name or a bad one."""
    named = study != UNKNOWN and _is_file_name(study)
    return Path(_text(cfg, "runs")) / (study if named else "..")


def _is_file_name(name: str) -> bool:
    try:
        check_file_name("study.name", name)
    except ConfigError:
        return False
    return redact(name) == name  # other users can see it


def _begun(run: RunFolder) -> bool:
    """Return True where a folder holds more than a refusal, or a process writes it."""
    try:
        result = run.result()
    except CheckpointError:  # damaged, or of another run
        return True
    if result is not None:
        return result.status != RunStatus.REFUSED
    return run.metrics.exists() or run.checkpoints.exists() or run_lock.writer(run.root) is not None


def _deciding(words: Sequence[str]) -> list[str]:
    """Return the overrides that select the cell, sorted: not its folder, nor how it is launched."""
    beside = ("runs=", "hydra.", "hydra/", "tracking")
    return sorted(word for word in words if not word.startswith(beside))


def _text(cfg: DictConfig, key: str) -> str:
    """Return a value as text; ``UNKNOWN`` where it is null or cannot be resolved."""
    try:
        return str(OmegaConf.select(cfg, key) or UNKNOWN)
    except OmegaConfBaseException:
        return UNKNOWN


def _yaml(cfg: DictConfig | None) -> str | None:
    """Return a configuration as YAML, resolved where all of it can be; None where it cannot be written."""
    if cfg is None:
        return None
    for resolve in (True, False):
        try:
            return _as_yaml(OmegaConf.to_container(cfg, resolve=resolve))
        except OmegaConfBaseException:
            continue
    return None


def _as_yaml(tree: Any) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(redact(tree)))


def stored_status(settings: Settings) -> str | None:
    """Return the status of a run in the frame of its study; None without a row, or without a final status.

    Raises DataError where the frame cannot be read, or contradicts itself.
    """
    name = settings.study.stored
    if name is None:
        return None
    path = stored_frame(name, may_be_new=settings.study.workload is not None)
    return _statuses(path).get((settings.cell, settings.digest, settings.seed))


def stored_frame(name: str, *, may_be_new: bool = False) -> Path:
    """Return the path of a frame that ``study.stored`` names.

    Args:
        name: path of the frame.
        may_be_new: True for a run of a track, which writes its frame after its first runs.

    Raises:
        ConfigError: there is no such file.
    """
    path = CONF.parent / name
    if path.exists() or may_be_new:
        return path
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    names = [file.name for file in beside if file.suffix == ".parquet"]
    hint = nearest(path.name, names) if path.parent.is_dir() else nearest_folder(path.parent)
    raise ConfigError(
        f"study.stored={name}: there is no {path}{hint}: name a frame of archbench compare, relative to "
        f"{CONF.parent}, or study.stored=null"
    )


def _statuses(path: Path) -> dict[tuple[str, str, int], str]:
    """Return the final statuses of a frame, by cell, digest and seed; none where there is no such file."""
    return _read_statuses(path, path.stat().st_mtime_ns) if path.exists() else {}


@functools.lru_cache(maxsize=4)
def _read_statuses(path: Path, changed: int) -> dict[tuple[str, str, int], str]:
    """Return the statuses of a frame that was changed last at a time."""
    # Arrow takes half a second to import: only where there is such a file.
    from archbench.experiments.tracking.results_frame import NEEDED, read_results

    rows = read_results(path, only=NEEDED).to_pylist()
    return {
        (row["cell"], row["digest"], row["seed"]): row["status"] for row in rows if row["status"] in FINAL
    }
