"""The same layers from other libraries: ``mambapy`` and ``transformers``."""

from __future__ import annotations

from collections.abc import Iterator

from mambapy.mamba import MambaBlock
from mambapy.mamba import MambaConfig as BlockConfig
from torch import nn
from transformers import Mamba2Config, MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer


def mambapy_layers(kind: str, d_model: int) -> Iterator[tuple[str, nn.Module]]:
    """Mamba with the parallel scan, as its documentation trains it. Its Mamba-2 needs a GPU."""
    if kind == "mamba":
        yield "mambapy", MambaBlock(BlockConfig(d_model=d_model, n_layers=1, pscan=True))


def transformers_layers(kind: str, d_model: int) -> Iterator[tuple[str, nn.Module]]:
    """Mamba; Mamba-2 with our chunk and with its default."""
    if kind == "mamba":
        yield "transformers", MambaMixer(MambaConfig(hidden_size=d_model, num_hidden_layers=1), layer_idx=0)
    for chunk in (64, 256) if kind == "mamba2" else ():
        config = Mamba2Config(
            hidden_size=d_model,
            num_heads=8,
            head_dim=2 * d_model // 8,
            state_size=64,
            n_groups=1,
            chunk_size=chunk,
        )
        yield f"transformers, chunk {chunk}", Mamba2Mixer(config, layer_idx=0)
