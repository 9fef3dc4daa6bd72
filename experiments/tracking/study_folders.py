"""The folders of a study: which of them are runs, and whether each holds the run that its path names."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

SEED = re.compile(r"s(0|[1-9][0-9]*)")
NO_RUN = (
    "left out, as its name is not CELL-DIGEST/sSEED: rename it to what its result.json says, or remove it"
)


@dataclass(frozen=True, kw_only=True)
class StudyFolders:
    """The folders in the folder of a study, by their paths inside it, in order."""

    runs: list[str]
    """``CELL-DIGEST/sSEED``."""
    others: list[str]
    """Those beside runs whose names are none of a run, such as copies."""

    @classmethod
    def of(cls, study: Path) -> StudyFolders:
        """List the folders of a study; of one that does not exist there are none."""
        runs, others = [], []
        for cell in _folders(study):
            names = _folders(study / cell)
            seeds = [name for name in names if SEED.fullmatch(name)]
            if "-" in cell:
                runs += [f"{cell}/{name}" for name in seeds]
                others += [f"{cell}/{name}" for name in names if name not in seeds]
            elif seeds:
                others.append(cell)
        return cls(runs=runs, others=others)


def _folders(path: Path) -> list[str]:
    """Return the names of the folders in a folder, in order; none of a folder that cannot be listed."""
    try:
        with os.scandir(path) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name[0] != "." and (entry.is_dir(follow_symlinks=False) or entry.is_symlink())
            )
    except OSError:
        return []


MISPLACED = "move the folder back to where its run belongs, or remove it"


def misplacement(folder: Path, recorded: str) -> str | None:
    """Return whose run a folder holds, in words, if not that of its path; else None.

    A folder that was copied, swapped or renamed would count as another seed, or as another model.

    Args:
        folder: ``CELL-DIGEST/sSEED``, in any study.
        recorded: the run key that a file in it has.
    """
    key = f"{folder.parent.name}-{folder.name}"
    return None if recorded == key else f"it holds the run {recorded}, not {key}"
