"""Verify the runs of a study: every byte of its run folders, checkpoints and token files.

    archbench check study=compare [runs=runs]

Prints a line for each damaged file, with a remedy. Nothing is changed. Runs that a process is writing are
skipped.

The exit code is 0 if nothing is damaged, 3 if only prepared data is, else 6.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from archbench.experiments.config.options import run_command
from archbench.experiments.data.token_file import read_meta, verify
from archbench.experiments.data.token_writer import META
from archbench.experiments.run.contradictions import contradictions
from archbench.experiments.run.model_files import RECORD, foreign, read_model_spec, retraining, rewriting
from archbench.experiments.run.resume_compatibility import check_checkpoints
from archbench.experiments.runtime.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    RunError,
    nearest_folder,
)
from archbench.experiments.runtime.run_lock import writer
from archbench.experiments.runtime.special_files import wrong_kinds
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tracking.run_files import (
    CHECKPOINT,
    FETCHED,
    HASHED,
    TOKENIZER,
    RunResult,
    damaged_files,
)
from archbench.experiments.tracking.run_folder import LOST, NO_RUN, RunFolder, StudyFolders
from archbench.experiments.training.checkpoints.checkpoint import (
    SAVED,
    broken,
    committed,
    newest_step,
    place,
    saved_step,
)

REPLACE = "put the file in its place, or remove the run's folder and train it again"
FOLDERS = ("checkpoints", "routing", "failures")
"""Folders in the folder of a run."""
AGAIN = "remove the run's folder to begin again"


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """The study to verify."""

    study: str
    """Name of the study, a folder in ``runs``."""
    runs: str = "runs"
    """Folder of all studies."""


@dataclass(kw_only=True)
class Report:
    """The files that were verified, and the damaged ones among them."""

    runs: int = 0
    checkpoints: int = 0
    token_files: int = 0
    written: int = 0
    """Runs that a process is writing."""
    records: list[str] = field(default_factory=list)
    """Damage of run folders and checkpoints."""
    data: list[str] = field(default_factory=list)
    """Damage of token files."""

    @property
    def exit_code(self) -> int:
        if self.records:
            return CheckpointError.exit_code
        return DataError.exit_code if self.data else 0

    def lines(self, study: str) -> Iterator[str]:
        """Yield the lines to print."""
        yield from (f"damaged: {line}" for line in [*self.records, *self.data])
        yield (
            f"study {study}: {self.runs} runs, {self.checkpoints} checkpoints and {self.token_files} "
            f"prepared corpora verified; {len(self.records) + len(self.data)} damaged, {self.written} being "
            "written"
        )


def check_study(study: Path) -> Report:
    """Verify all files of a study. Raises ConfigError if it has no runs."""
    folders = StudyFolders.of(study)
    if not folders.runs:
        raise ConfigError(f"study={study.name}: there is no run in {study}/{nearest_folder(study / 'x')}")
    report, caches = Report(), set()
    report.records += [f"{study / name}: {NO_RUN}" for name in folders.others]
    for folder in (study / name for name in folders.runs):
        try:
            caches |= _check_run(folder, report)
        except OSError as error:
            report.records.append(f"{error.filename or folder}: cannot be read ({error.strerror}): {LOST}")
    for cache in sorted(caches):
        _check_cache(cache, report)
    return report


def _check_run(folder: Path, report: Report) -> set[Path]:
    """Check a run, and return the folder of its prepared tokens, if it exists. Raises OSError."""
    other = [f"{path}: is {kind}, not a file: {REPLACE}" for path, kind in wrong_kinds(folder)]
    places = [path for path in map(folder.joinpath, FOLDERS) if path.exists() and not path.is_dir()]
    other += [f"{path}: is a file, not a folder: put the folder in its place, or {AGAIN}" for path in places]
    if other:
        report.runs += 1
        report.records += other
        return set()
    if writer(folder) is not None:
        report.written += 1
        return set()
    report.runs += 1
    result, readable = _check_record(folder, report)
    final = None if result is None else result.saved_step
    _check_checkpoints(folder, final, RunFolder(folder).key if readable else None, report)
    return _check_config(folder, report)


def _check_record(folder: Path, report: Report) -> tuple[RunResult | None, bool]:
    """Check the files other than checkpoints. Return the result, if any, and whether all can be read."""
    run = RunFolder(folder)
    try:
        result, provenance = run.result(), run.provenance()
        if provenance is not None:
            run.check_key(provenance.key)
    except RunError as error:
        report.records.append(str(error))
        return None, False
    if result is None:
        return None, True
    contents = {name: (folder / name).read_bytes() if (folder / name).exists() else None for name in HASHED}
    if TOKENIZER in result.files and contents[TOKENIZER] is None and run.checkpoints.exists():
        contents[TOKENIZER] = b""  # its model cannot be used without it
    manifest = CHECKPOINT.format(step=result.saved_step or 0)
    if (folder / manifest).is_file():
        contents[manifest] = (folder / manifest).read_bytes()
    damaged = damaged_files(result, contents)
    for name in damaged:
        report.records.append(f"{folder / name}: has changed since the run ended: {LOST}")
    report.records += [
        f"{folder / 'result.json'}: {reason}: {LOST}" for reason in contradictions(run, result, damaged)
    ]
    return result, True


def _check_checkpoints(folder: Path, final: int | None, key: str | None, report: Report) -> None:
    """Check the checkpoints of a run.

    Args:
        final: step of the last checkpoint; None if the run has not ended.
        key: run key; None if its files cannot be read.
    """
    checkpoints = committed(folder / "checkpoints")
    if (folder / RECORD).exists():
        try:
            read_model_spec(folder)
        except RunError as error:
            report.records.append(str(error))
    elif checkpoints:
        report.records.append(f"{folder / RECORD}: is missing: {rewriting(folder / RECORD)}")
    fetched = (folder / FETCHED).exists()  # without checkpoints
    if final is not None and not fetched:
        last = place(folder / "checkpoints", final)
        if last not in checkpoints:
            report.records.append(f"{last}: is missing: {retraining(last)}")
    is_any_intact = False
    for path in checkpoints:
        report.checkpoints += 1
        if (reason := broken(path)) is not None:
            report.records.append(f"{path}: {reason}: {'remove it' if is_any_intact else retraining(path)}")
        elif (reason := foreign(path, key)) is not None:
            report.records.append(f"{path}: {reason}: remove it")
        else:
            is_any_intact = True
    if checkpoints and not fetched:
        _check_saved(folder, final, report)
    elif final is None and not fetched:
        try:
            check_checkpoints(folder)  # all of them may be lost
        except CheckpointError as error:
            report.records.append(str(error))


def _check_saved(folder: Path, final: int | None, report: Report) -> None:
    """Check the file with the last saved step, which shows if checkpoints were lost.

    Args:
        final: step of the last checkpoint; None if the run has not ended. Then the file may be older.
    """
    path, newest = folder / SAVED, newest_step(folder / "checkpoints")
    remedy = f'write {{"step": {newest}}} into it, as of the newest checkpoint'
    try:
        step = saved_step(folder, remedy)
    except CheckpointError as error:
        report.records.append(str(error))
        return
    if final is not None and step != final:
        reason = "is missing" if step is None else f"has step {step}"
        report.records.append(f"{path}: {reason}: {remedy}")


def _check_config(folder: Path, report: Report) -> set[Path]:
    """Return the folder of prepared tokens that the configuration of a run names, if it exists."""
    path = folder / "config.yaml"
    if not path.exists():
        return set()
    try:
        config = read_yaml(path, AGAIN)
        names, seed = config.get("names"), config.get("seed")
        # A run that has ended has its key in the result. Otherwise the configuration must fit the path.
        if not (folder / "result.json").exists() and isinstance(names, dict) and seed is not None:
            parts = [names.get("backbone"), names.get("task"), names.get("scale")]
            digest = folder.parent.name.rpartition("-")[2]
            RunFolder(folder).check_key("-".join(map(str, [*parts, digest, f"s{seed}"])))
        task = config.get("task")
    except RunError as error:
        report.records.append(str(error))
        return set()
    if not isinstance(task, dict):
        report.records.append(f"{path}: cannot be read (it has no task): {AGAIN}")
        return set()
    name = task.get("cache_dir")
    return {Path(name)} if name and Path(name).is_dir() else set()


def _check_cache(cache: Path, report: Report) -> None:
    """Check the token files of a folder of prepared data."""
    for folder in sorted({path.parent for path in [*cache.glob(f"*/{META}"), *cache.glob("*/*.bin")]}):
        if folder.name.startswith("."):
            continue  # being prepared
        if other := [
            f"{path}: is {kind}, not a file: remove {folder} to prepare it again"
            for path, kind in wrong_kinds(folder)
        ]:
            report.data += other
            report.token_files += 1
            continue
        try:
            verify(folder, read_meta(folder))
        except DataError as error:
            report.data.append(str(error))
        report.token_files += 1


def publish(config: CheckConfig, report: Report) -> int:
    """Print the damaged files, and return the exit code."""
    print("\n".join(report.lines(config.study)), flush=True)
    return report.exit_code


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    return run_command(
        __doc__, CheckConfig, arguments,
        lambda config: (config, check_study(Path(config.runs) / config.study)),
        lambda prepared: publish(*prepared),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
