"""The family and the description of a model, from the YAML of its backbone or variant."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from experiments.config import CONF
from experiments.runtime.yaml_state import read_yaml

OTHER = "other"
FAMILIES = {
    "decoder": "transformer decoder", "encoder": "transformer encoder",
    "encoder_decoder": "encoder-decoder", "moe": "mixture of experts", "s4": "state space",
    "mamba": "state space", "mamba2": "state space", "bidirectional_ssm": "state space",
    "linear_attention": "linear attention", "hybrid": "hybrid", "masked_diffusion": "diffusion",
    "block_diffusion": "diffusion",
}  # fmt: skip
"""Family of each module in ``architectures.backbones``."""


@cache
def family(backbone: str) -> str:
    """Return the family of a backbone, or of a variant whose name begins with its name."""
    parts = backbone.split("_")
    for length in range(len(parts), 0, -1):
        path = CONF / "backbone" / f"{'_'.join(parts[:length])}.yaml"
        if backbone.isidentifier() and path.is_file():
            module = str(read_yaml(path)["_target_"]).split(".")[-2]
            return FAMILIES.get(module, OTHER)
    return OTHER


@cache
def variants() -> dict[str, Path]:
    """Return the YAML of each variant by the name of its model."""
    names = {
        path: read_yaml(path).get("names", {}).get("backbone") for path in (CONF / "variant").glob("*.yaml")
    }
    return {name: path for path, name in names.items() if name}


def description(group: str, name: str) -> str:
    """Return the comment that a YAML of ``conf/`` begins with, of a model or a task; empty without a YAML."""
    path = CONF / group / f"{name}.yaml"
    if group == "backbone" and not path.is_file():
        path = variants().get(name, path)
    return comment(path) if path.is_file() else ""


def comment(path: Path) -> str:
    """Return the first comment of a YAML, without Hydra's line about its package."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines += [line.lstrip("# ")] * (not line.startswith("# @package"))
    return " ".join(lines)
