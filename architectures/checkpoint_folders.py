"""Folders of Hugging Face checkpoints, as ``architectures.pretrained`` reads and writes them if installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from archbench.architectures.backbone import Backbone, BackboneConfig
from archbench.architectures.optional_part import optional_module

HFConfig = dict[str, Any]
"""Content of config.json. Each architecture of ``transformers`` defines its own keys, so that values have no
common type: the family of a checkpoint checks those that it reads."""


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Specification of a model: class, configuration and sizes."""

    backbone_class: type[Backbone]
    config: BackboneConfig
    """Configuration with all widths resolved."""
    vocab_size: int
    max_length: int
    """Longest sequence in tokens."""

    def build(self) -> Backbone:
        """Return the model with random weights."""
        return self.backbone_class(self.config, vocab_size=self.vocab_size, max_length=self.max_length)


class CheckpointFolders(Protocol):
    """The public functions of ``architectures.pretrained``, which documents them."""

    def load_folder(self, path: Path) -> Backbone: ...
    def read_config_json(self, path: Path) -> HFConfig: ...
    def read_folder_config(self, path: Path) -> Blueprint: ...
    def stored_dtypes(self, path: Path) -> dict[str, torch.dtype]: ...
    def save_folder(
        self,
        model: Backbone,
        path: Path,
        *,
        shard_bytes: int | None = None,
        model_type: str | None = None,
        token_ids: Mapping[str, int | list[int]] | None = None,
        original: HFConfig | None = None,
        dtypes: dict[str, torch.dtype] | None = None,
    ) -> None: ...


def checkpoint_folders() -> CheckpointFolders:
    """Return the functions that read and write folders. Raises ValueError where they are not installed."""
    module = optional_module("pretrained")
    if module is None:
        raise ValueError(
            f"{__package__}.pretrained is not installed, which reads and writes folders of Hugging Face"
        )
    return cast(CheckpointFolders, module)
