"""The folder of a submission: it is written from the runs of a study, and read."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd
import yaml

from archbench.analysis.declared.study_frames import study_frame
from archbench.analysis.files import parquet, write
from archbench.analysis.load.study import load_study
from archbench.analysis.submission.study import StudyRules
from archbench.experiments.config import CONF
from archbench.experiments.config.old_names import user_code
from archbench.experiments.config.structured import typed
from archbench.experiments.config.study import RULES
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tracking.provenance import SUFFIXES
from archbench.experiments.tracking.run_files import HASHED

RECORD, RESULTS, RUNS, CONFIGS = "submission.yaml", "results.parquet", "records", "configs"
FILES = ("result.json", *HASHED)
"""Files of a run that a submission contains."""
CACHE = ".frame"
"""File that reading a study writes next to its runs."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The content of submission.yaml."""

    study: str
    """Value of ``study=``, such as ``track/cpu`` or ``compare``."""
    overrides: list[str]
    """Overrides that choose the model, such as ``backbone=my_mixer.MyMixer``, and the workloads of the study
    if not all of them were run."""
    authors: str
    """Authors of the model."""
    about: str = ""
    """A sentence or a link about the model."""
    rules: str = RULES
    """Version of the rules that the runs follow."""
    configs: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each YAML file of the model, by its path in ``configs``."""


def read_submission(folder: Path) -> Submission:
    """Return the record of a submission. Raises DataError if it is missing, ConfigError if it is wrong."""
    if not (folder / RECORD).is_file():
        raise DataError(f"{folder} is no submission: it has no {RECORD}")
    return typed(Submission, read_yaml(folder / RECORD), "")


def load_runs(rules: StudyRules, runs: Path) -> pd.DataFrame:
    """Return the tuning and test runs in a folder, without rejected ones; empty if there are none."""
    names = [name for name in (rules.rates_folder, rules.folder) if any((runs / name).glob("*-*/s*"))]
    frames = [load_study(runs, name) for name in names]
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["status", "backbone"])
    return frame[frame["status"] != RunStatus.REFUSED].reset_index(drop=True)


def model_configs(overrides: Sequence[str], config_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of the YAML files in a folder that a model is composed of, by their path in it."""
    found: dict[str, str] = {}
    left = [Path("backbone", text.partition("=")[2]) for text in overrides if text.startswith("backbone=")]
    while left:
        option = left.pop()
        name = f"{option.as_posix()}.yaml"
        if name in found or not (config_dir / name).is_file():
            continue
        found[name] = _digest(config_dir / name)
        for entry in read_yaml(config_dir / name).get("defaults", []):
            if isinstance(entry, str):  # such as parts/hybrid@_here_, or /backbone/decoder
                path = entry.partition("@")[0]
                left.append(Path(path[1:]) if path.startswith("/") else option.parent / path)
    return found


def config_problems(submission: Submission, folder: Path) -> Iterator[str]:
    """Yield what is wrong with the YAML files of a submission: only new ones of its backbone are allowed."""
    paths = [path for path in (folder / CONFIGS).rglob("*") if path.is_file()]
    found = {path.relative_to(folder / CONFIGS).as_posix(): _digest(path) for path in paths}
    for name in sorted(found.keys() | submission.configs.keys()):
        if found.get(name) != submission.configs.get(name):
            yield f"{CONFIGS}/{name} is not the file of {RECORD}"
        elif not (name.startswith("backbone/") and name.endswith(".yaml")):
            yield f"{CONFIGS}/{name}: a submission has YAML files of its backbone only"
        elif (CONF / name).exists():
            yield f"{CONFIGS}/{name} is a file of the project: rename it, and train again"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def file_problems(folder: Path) -> Iterator[str]:
    """Yield the files that are no part of a submission, such as weights and compiled modules."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_symlink():
            yield f"{name} is a link: a submission has files only"
        elif path.is_file() and "__pycache__" not in name.parts and not _is_part(name):
            yield f"{name} is no part of a submission: remove it"


def _is_part(name: Path) -> bool:
    top = name.parts[0]
    if top in (RUNS, CONFIGS):
        return name.name in (*FILES, CACHE) if top == RUNS else name.suffix == ".yaml"
    return name.suffix in SUFFIXES or name.as_posix() in (RECORD, RESULTS, "README.md")


def copy_modules(folder: Path, target: Path) -> None:
    """Copy the source files of a submission's modules: what was compiled from other code is left behind."""

    def left_behind(parent: str, names: list[str]) -> list[str]:
        return [*_no_sources(parent, names), *((RUNS, CONFIGS) if Path(parent) == folder else ())]

    shutil.copytree(folder, target, ignore=left_behind)


def _no_sources(parent: str, names: list[str]) -> list[str]:
    files = [name for name in names if Path(parent, name).is_file()]
    return [name for name in files if Path(name).suffix not in SUFFIXES]


def write_submission(
    submission: Submission,
    rules: StudyRules,
    expected: pd.DataFrame,
    runs: Path,
    folder: Path,
    config_dir: Path,
) -> None:
    """Write a submission of all runs of its model in ``runs``. Raises ValueError if there are none.

    Args:
        submission: its record.
        rules: its study.
        expected: the runs that the study asks for, from ``analysis.submission.study.expected_runs``.
        runs: the folder of all studies.
        folder: the folder to write, which must not exist.
        config_dir: the folder that the YAML files of the model are in.
    """
    frame = load_runs(rules, runs)
    frame = frame[frame["backbone"].isin(expected["backbone"])]
    if frame.empty:
        raise ValueError(
            f"{runs}/ has no runs of {' '.join(submission.overrides)}: train those of "
            f"study={submission.study}_rates, then those of study={submission.study}"
        )
    if folder.exists():
        raise ValueError(f"{folder} exists: remove it, or choose another folder with out=")
    for path in map(Path, frame["path"]):
        target = folder / RUNS / path.relative_to(runs)
        target.mkdir(parents=True)
        for name in FILES:
            if (path / name).exists():
                shutil.copyfile(path / name, target / name)
    for name in submission.configs:
        (folder / CONFIGS / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(config_dir / name, folder / CONFIGS / name)
    _copy_modules({name for code in frame["code"] for name in user_code(json.loads(code))}, folder)
    write(folder / RESULTS, parquet(study_frame(folder / RUNS, rules.folder)))
    for cache in folder.rglob(CACHE):  # of what was read just now
        cache.unlink()
    write(folder / RECORD, yaml.safe_dump(asdict(submission), sort_keys=False))


def _copy_modules(names: Iterable[str], folder: Path) -> None:
    """Copy the top-level modules of the user. Raises ValueError if one is not found."""
    for name in sorted(set(names)):
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ValueError(f"no module {name!r}, which the runs have used: start in the folder that has it")
        if spec.origin and not spec.submodule_search_locations:
            shutil.copyfile(spec.origin, folder / Path(spec.origin).name)
        for source in spec.submodule_search_locations or ():
            shutil.copytree(
                source, folder / name, dirs_exist_ok=True, ignore=_no_sources, copy_function=shutil.copyfile
            )
