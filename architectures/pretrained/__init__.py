"""Reads and writes Hugging Face checkpoints: folders of config.json and safetensors."""

from archbench.architectures.pretrained.export import export_config, save_folder
from archbench.architectures.pretrained.folder import (
    load_folder,
    read_config_json,
    read_folder_config,
    stored_dtypes,
)

__all__ = [
    "export_config",
    "load_folder",
    "read_config_json",
    "read_folder_config",
    "save_folder",
    "stored_dtypes",
]
