"""The family of a model, from the YAML of its backbone or variant."""

from __future__ import annotations

from functools import cache

from archbench.experiments.config import CONF
from archbench.experiments.runtime.yaml_state import read_yaml

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
