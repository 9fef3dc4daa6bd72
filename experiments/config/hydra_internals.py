"""The parts of Hydra that it does not publish. No other module imports ``hydra._internal``."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins import file_config_source
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import _run_hydra, create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import SearchPathException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from archbench.experiments.runtime.errors import ConfigError

__all__ = ["Hydra", "SourcesRegistry", "file_config_source"]
VERSION_BASE = "1.3"


def command_line(words: Sequence[str]) -> argparse.Namespace:
    """Return a command line as Hydra reads it: ``overrides``, ``multirun``, ``config_dir``, ``cfg``, ..."""
    return get_args_parser().parse_args(list(words))


def answers(line: argparse.Namespace) -> bool:
    """Return True for an option that Hydra answers, such as ``--help`` and ``--cfg job``; nothing is run."""
    return bool(line.help or line.hydra_help or line.cfg or line.info or line.shell_completion)


def options() -> dict[str, argparse.Action]:
    """Return Hydra's own options by their spellings."""
    return get_args_parser()._option_string_actions


def run(words: Sequence[str], function: Callable[[DictConfig], Any], conf: Path, config_name: str) -> None:
    """Do what ``hydra.main`` does, with a command line that is given instead of ``sys.argv``."""
    line = command_line(words)
    if line.help:
        print(_help(line, conf, config_name))
        return
    if line.cfg and line.multirun:
        raise ConfigError(
            f"--cfg {line.cfg} prints the configuration of one run: leave out -m, and lists of values"
        )
    version.setbase(VERSION_BASE)
    _run_hydra(
        args=line,
        args_parser=get_args_parser(),
        task_function=function,
        config_path=str(conf),
        config_name=config_name,
    )


def _help(line: argparse.Namespace, conf: Path, config_name: str) -> str:
    """Return what ``--help`` prints. Hydra's function for it copies all sources anew for each group."""
    with loaded(line.config_dir, conf) as hydra:
        mode = RunMode.MULTIRUN if line.multirun else RunMode.RUN
        cfg = hydra.compose_config(config_name, line.overrides, mode, with_log_configuration=False)
        HydraConfig.instance().set_config(cfg)
        repository = hydra.config_loader.repository  # type: ignore[attr-defined]
        groups, parents = [], [""]
        while parents:
            parent = parents.pop()
            inner = repository.get_group_options(parent, ObjectType.GROUP)
            groups += [f"{parent}/{name}".lstrip("/") for name in inner]
            parents += [f"{parent}/{name}".lstrip("/") for name in inner]
        names = {
            group: sorted(repository.get_group_options(group, ObjectType.CONFIG))
            for group in sorted(groups)
            if group.partition("/")[0] != "hydra"
        }
        return Template(cfg.hydra.help.template).substitute(
            FLAGS_HELP=hydra.format_args_help(get_args_parser()),
            APP_CONFIG_GROUPS="".join(
                f"{group}: {', '.join(files)}\n" for group, files in names.items() if files
            ),
            CONFIG=OmegaConf.to_yaml(
                hydra.get_sanitized_cfg(copy.deepcopy(cfg), "job"), resolve=line.resolve
            ),
        )


@contextmanager
def loaded(config_dir: str | None, conf: Path) -> Iterator[Hydra]:
    """Give a Hydra that reads a folder of YAML files, and before it the folder of ``--config-dir``.

    Raises SearchPathException if there is no such folder.
    """
    version.setbase(VERSION_BASE)
    search_path = create_config_search_path(str(conf))
    if config_dir is not None:
        folder = Path(config_dir).absolute()
        if not folder.is_dir():
            raise SearchPathException(f"Additional config directory '{folder}' not found")
        before = SearchPathQuery(provider="schema")
        search_path.prepend(provider="command-line", path=f"file://{folder}", anchor=before)
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield Hydra.create_main_hydra2(task_name="archbench", config_search_path=search_path)
    finally:
        GlobalHydra.instance().hydra = outer


def is_expandable(cfg: DictConfig) -> bool:
    """Return True if the sweeper lists its runs before any is run; a search chooses them one by one."""
    return str(cfg.hydra.sweeper._target_) == f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"


def expanded(overrides: list[Override]) -> list[list[str]]:
    """Return the overrides of each run of a sweep."""
    (batch,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    return batch


def launcher_of(
    sweep: DictConfig, loader: Any, task_function: Callable[[DictConfig], Any]
) -> tuple[Launcher, Callbacks]:
    """Return the launcher of a sweep and the callbacks that its configuration names.

    Args:
        sweep: the configuration that its runs share.
        loader: reads the configuration of a run.
        task_function: is called with each of them.
    """
    callbacks = Callbacks(sweep)
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=HydraContext(config_loader=loader, callbacks=callbacks),
        task_function=task_function,
        config=sweep,
    )
    return launcher, callbacks


def outcome(job: JobReturn) -> Any:
    """Return what a job returned or raised. Hydra's own property prints the overrides of a failed one."""
    return job._return_value
