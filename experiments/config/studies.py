"""The studies of ``conf/study/``, and the commands that outputs tell a person to type."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from experiments.config.folder import CONF
from experiments.runtime.yaml_state import parse_yaml

TRACK = "track/"
"""The folder of the studies that are tracks, which have a command of their own."""


def study_words() -> dict[str, str]:
    """Return the word of each study for ``study=``, by ``study.name``, the name of its folder of runs.

    A file that cannot be read is left out: composing it says why.
    """
    found = {}
    for path in sorted((CONF / "study").rglob("*.yaml")):
        with contextlib.suppress(ValueError, OSError):
            tree = parse_yaml(path.read_text(encoding="utf-8"))
            study = tree.get("study") if isinstance(tree, dict) else None
            if isinstance(study, dict) and "name" in study:
                found[str(study["name"])] = path.relative_to(CONF / "study").with_suffix("").as_posix()
    return found


def typed_command(name: str, *words: str) -> str:
    """Return a command as it is typed: it works in every folder, whatever modules of the user's are there."""
    return shlex.join(["archbench", *name.split(), *words])


def train_words(command: str) -> list[str]:
    """Return the words of a recorded command, which in older records is ``python -m experiments.train``."""
    words = shlex.split(command)
    return words[2:] if words[:1] == ["archbench"] else words[3:]


def study_command(name: str, study: Path, *more: str) -> str:
    """Return a command that reads the runs of a study, as it is typed in the current folder.

    Args:
        name: of the command, such as ``compare``.
        study: the folder of its runs.
        more: further words.
    """
    return _command(name, f"study={study.name}", study, *more)


def train_command(study: Path, *more: str) -> str:
    """Return the command that trains what is missing of a study of ``conf/study/``; empty for any other.

    Args:
        study: the folder of its runs.
        more: further words, which the command of a track does not take.
    """
    word = study_words().get(study.name, "")
    if word.startswith(TRACK):
        return _command("track", word.removeprefix(TRACK).removesuffix("_rates"), study)
    return _command("train", f"study={word}", study, *more) if word else ""


def _command(name: str, choice: str, study: Path, *more: str) -> str:
    runs = study.parent
    if runs.is_absolute() and runs.is_relative_to(Path.cwd()):
        runs = runs.relative_to(Path.cwd())
    where = [] if runs == Path("runs") else [f"runs={runs}"]
    return typed_command(name, choice, *where, *more)
