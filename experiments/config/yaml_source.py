"""The YAML files of a configuration, which Hydra reads through ``experiments.runtime.yaml_state``."""

from __future__ import annotations

import os
from pathlib import Path

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import OmegaConf

from experiments.config.dataclass_defaults import config_defaults
from experiments.runtime.yaml_state import read_yaml

DEFAULTS_OF = "dataclass/"
"""Group of the defaults of each class, by its dotted path."""


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's source of files, strict: a key that is there twice, or a tab, is one line with its place.

    A file that names a class in ``_target_`` extends the defaults of the settings of this class, as if
    ``/dataclass/CLASS@_here_`` were the first entry of its ``defaults``.
    """

    def is_config(self, config_path: str) -> bool:
        return config_path.startswith(DEFAULTS_OF) or super().is_config(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a file of a group, or the defaults of a class. Raises ConfigError for a wrong file."""
        where = f"{self.scheme()}://{self.path}"
        if config_path.startswith(DEFAULTS_OF):
            defaults = config_defaults(config_path.removeprefix(DEFAULTS_OF))
            return ConfigResult(self.provider, where, OmegaConf.create(defaults), header={"package": None})
        path = Path(os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path))))
        if not path.exists():
            raise ConfigLoadError(f"Config not found : {path}")
        tree = read_yaml(path)
        if isinstance(target := tree.get("_target_"), str):
            extended = tree.get("defaults", ["_self_"])
            tree = {**tree, "defaults": [f"/{DEFAULTS_OF}{target}@_here_", *extended]}
        return ConfigResult(
            config=OmegaConf.create(tree),
            path=where,
            provider=self.provider,
            header=self._get_header_dict(path.read_text(encoding="utf-8-sig")[:512]),
        )


# Hydra registers its own class of this name later on, which changes nothing then.
SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
