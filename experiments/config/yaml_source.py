"""The YAML files of a configuration, which Hydra reads through ``experiments.runtime.yaml_state``."""

from __future__ import annotations

import os
from pathlib import Path

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import OmegaConf

from experiments.runtime.yaml_state import read_yaml


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's source of files, strict: a key that is there twice, or a tab, is one line with its place."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a file of a group. Raises ConfigError where it cannot be read."""
        path = Path(os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path))))
        if not path.exists():
            raise ConfigLoadError(f"Config not found : {path}")
        return ConfigResult(
            config=OmegaConf.create(read_yaml(path)),
            path=f"{self.scheme()}://{self.path}",
            provider=self.provider,
            header=self._get_header_dict(path.read_text(encoding="utf-8-sig")[:512]),
        )


# Hydra registers its own class of this name later on, which changes nothing then.
SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
