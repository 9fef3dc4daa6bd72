"""Descriptions of models and tasks: the comments that their YAML files begin with."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from archbench.experiments.config import CONF
from archbench.experiments.runtime.yaml_state import read_yaml


@cache
def description(group: str, name: str) -> str:
    """Return the comment of a YAML of ``conf/``, of a model or a task; empty without a YAML.

    Args:
        group: the folder in ``conf/``. Of ``backbone``, a name may also be that of a variant's model.
        name: of the file, which may come from a results frame.
    """
    if not name.isidentifier():
        return ""
    path = CONF / group / f"{name}.yaml"
    if group == "backbone" and not path.is_file():
        path = _variants().get(name, path)
    return comment(path) if path.is_file() else ""


def comment(path: Path) -> str:
    """Return the first comment of a YAML, without Hydra's line about its package."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines += [line.lstrip("# ")] * (not line.startswith("# @package"))
    return " ".join(lines)


@cache
def _variants() -> dict[str, Path]:
    """Return the YAML of each variant by the name of its model."""
    names = {
        path: read_yaml(path).get("names", {}).get("backbone") for path in (CONF / "variant").glob("*.yaml")
    }
    return {name: path for path, name in names.items() if name}
