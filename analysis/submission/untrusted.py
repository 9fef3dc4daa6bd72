"""What is checked in a submission before it is read, copied or composed: its files, overrides and YAML files.

Copying a link to a device fills the disk, and Hydra resolves what an override or a YAML file asks for, such
as the values of environment variables.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from archbench.experiments.runtime.errors import DataError

MOST_BYTES, MOST_FILES = 2**30, 100_000
"""A run takes about 100 KB in its submission."""
_INTERPOLATION = re.compile(
    r"\$\{\s*(?!hydra)(?:[\w.]+|oc\.select:\s*(?!hydra)[\w.]+\s*(?:,\s*[\w.-]*\s*)?)\}"
)
"""A reference to another setting."""
_STUDY = re.compile(r"\w[\w-]*(?:/\w[\w-]*)*")
_OVERRIDE = re.compile(r"[A-Za-z_][\w./]*=[^\x00-\x1f]*")


def check_files(folder: Path) -> None:
    """Raise DataError for a file that must not be read: a link, a pipe or a device, or more than fits."""
    size = 0
    for number, path in enumerate(_entries(folder)):
        status, name = path.lstat(), path.relative_to(folder)
        if stat.S_ISLNK(status.st_mode):
            raise DataError(f"{name} is a link: a submission has files only; put the file in its place")
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise DataError(f"{name} is neither a file nor a folder: remove it")
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if size > MOST_BYTES or number >= MOST_FILES:
            raise DataError(
                f"{name}: a submission has at most {MOST_FILES:,} files of together {MOST_BYTES / 2**30:.0f} "
                "GiB: remove what is no part of it"
            )


def _entries(folder: Path) -> Iterator[Path]:
    """Yield everything in a folder, without following links."""
    for parent, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            yield Path(parent, name)


def study_problems(study: str) -> Iterator[str]:
    """Yield that the value of ``study=`` is no name of a study."""
    if not _STUDY.fullmatch(study):
        yield f"study={study!r} is no name of a study: letters, digits, '_' and '-', as in track/cpu"


def override_problems(overrides: Sequence[str]) -> Iterator[str]:
    """Yield overrides that are not KEY=VALUE, or that refer to more than settings."""
    for override in overrides:
        if not _OVERRIDE.fullmatch(override) or override.startswith("hydra"):
            yield f"overrides: {override!r} is not KEY=VALUE, as in backbone.d_state=16"
        elif foreign := _foreign(override):
            yield f"overrides: {override.partition('=')[0]} refers to {foreign}: write the value itself"


def yaml_problems(folder: Path) -> Iterator[str]:
    """Yield YAML files of a folder that refer to more than settings, or change Hydra."""
    for path in _entries(folder):
        if path.suffix not in (".yaml", ".yml") or not path.is_file():
            continue
        name, text = path.relative_to(folder), path.read_text(encoding="utf-8", errors="replace")
        if foreign := _foreign(text):  # read_submission would resolve it
            yield f"{name} refers to {foreign}: write the value itself"
        elif path.parent != folder and re.search(
            r"(?m)@package|(?:override\s+|-\s*)/?hydra/|^\s*[\"']?hydra(?:\.\w+)?[\"']?\s*:", text
        ):
            yield f"{name} sets a package or Hydra's settings: a submission sets its backbone only"


def _foreign(text: str) -> str | None:
    """Return the first kind of interpolation that is no reference to a setting, without its argument."""
    found = re.search(r"\$\{[^:}$]{0,40}:?", _INTERPOLATION.sub("", text))
    return found[0] + "...}" if found else None
