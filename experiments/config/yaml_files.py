"""The YAML files of a configuration as Hydra reads them, and the defaults of the classes that they name.

A YAML file names a class in ``_target_``, and has only the settings that differ from the defaults of the
dataclass of the class. Hydra needs these defaults while it composes: composing imports the classes.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import re
from pathlib import Path
from typing import Any

from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import MISSING, OmegaConf

from archbench.experiments.config.hydra_internals import SourcesRegistry, file_config_source
from archbench.experiments.config.old_names import current_name
from archbench.experiments.config.structured import load_class
from archbench.experiments.runtime.yaml_state import read_yaml

DEFAULTS_OF = "dataclass/"
"""Group of the defaults of each class, by its dotted path."""
BACKBONE_CLASS = re.compile(r"backbone/((?:\w+\.)+[^\W\d]\w*)")
"""``backbone=MODULE.CLASS``, which needs no YAML file."""


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's source of files, strict: a duplicate key, or a tab, is an error of one line with its position.

    A file that names a class in ``_target_`` extends the defaults of the settings of this class, as if
    ``/dataclass/CLASS@_here_`` were the first entry of its ``defaults``. ``backbone=MODULE.CLASS`` stands for
    a file with this ``_target_`` and ``num_layers: ${scale.depth}``.
    """

    def is_config(self, config_path: str) -> bool:
        if config_path.startswith(DEFAULTS_OF) or super().is_config(config_path):
            return True
        return BACKBONE_CLASS.fullmatch(config_path.removesuffix(".yaml")) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a file of a group, or the defaults of a class. Raises ConfigError for a wrong file."""
        source = f"{self.scheme()}://{self.path}"
        if config_path.startswith(DEFAULTS_OF):
            defaults = config_defaults(config_path.removeprefix(DEFAULTS_OF))
            return ConfigResult(self.provider, source, OmegaConf.create(defaults), header={"package": None})
        path = Path(os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path))))
        header: dict[str, str | None] = {"package": None}
        if path.exists():
            tree = read_yaml(path)
            header = self._get_header_dict(path.read_text(encoding="utf-8-sig")[:512])
        elif (match := BACKBONE_CLASS.fullmatch(config_path.removesuffix(".yaml"))) is not None:
            tree = {"_target_": match[1]}
            if "num_layers" in config_defaults(match[1]):
                tree["num_layers"] = "${scale.depth}"
        else:
            raise ConfigLoadError(f"Config not found : {path}")
        if isinstance(named := tree.get("_target_"), str):
            target, entries = current_name(named), tree.get("defaults", ["_self_"])
            tree = {**tree, "_target_": target, "defaults": [f"/{DEFAULTS_OF}{target}@_here_", *entries]}
        return ConfigResult(
            config=OmegaConf.create(tree),
            path=source,
            provider=self.provider,
            header=header,
        )


# Hydra registers its own class of this name later on, which changes nothing then.
SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource


@functools.cache
def config_defaults(target: str) -> dict[str, Any]:
    """Return the defaults of the dataclass ``Config`` of the class at a dotted path, or of the class itself.

    A nested dataclass is a dictionary, and a field without a default is ``???``. The result is empty if there
    is no such class: composing continues, and ``component`` rejects it when the configuration is read.
    """
    is_collecting = gc.isenabled()
    gc.disable()  # a tenth of the time of importing PyTorch
    try:
        cls = load_class(target, object, "")
    except Exception:  # also what a module of the user raises
        return {}
    finally:
        if is_collecting:
            gc.enable()
    config = getattr(cls, "Config", cls)
    return _defaults(config) if dataclasses.is_dataclass(config) else {}


def _defaults(config: Any) -> dict[str, Any]:
    """Return the default of each field of a dataclass, in their order."""
    defaults = {}
    for field in dataclasses.fields(config):
        value: Any = MISSING
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        defaults[field.name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
    return defaults
