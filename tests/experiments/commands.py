"""Runs the harness in tests: as real processes, or composed and executed in this one."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from archbench.architectures.backbone import Backbone
from archbench.experiments.config import CONF
from archbench.experiments.config.sections import read_sections
from archbench.experiments.config.structured import load_class
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.run import run as run_training
from archbench.experiments.run.settings import Settings, read_settings
from archbench.experiments.tasks.task import Task
from tests.backbones import FAMILIES

ROOT = CONF.parent
BACKBONES = FAMILIES
TASKS = ("text", "recall")

TINY = (
    "scale.axis=non_embedding",
    "scale.targets.non_embedding=20000",
    "budget=smoke",
    "device=cpu",
    "device.threads=1",
    "trainer.validation_examples=8",
    "trainer.test_examples=8",
)
"""A model and a budget of a second."""
SHORT_TEXT = ("task=text", "task.sequence_length=64")
RECALL = ("task=recall", "task.sequence_length=32", "task.num_symbols=32")


def task_words(task: str) -> tuple[str, ...]:
    """The overrides that choose a task at a length for tests."""
    return {"text": SHORT_TEXT, "recall": RECALL}.get(task, (f"task={task}",))


def start(module: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    """``python -m archbench.experiments.MODULE words`` from the root of the checkout, running."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "HYDRA"))}
    return subprocess.Popen(
        [sys.executable, "-m", f"archbench.experiments.{module}", *words],
        cwd=ROOT,
        env=inherited | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(module: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same, waited for."""
    process = start(module, *words, **environment)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def printed_rows(module: str, *words: str, env: dict[str, str] | None) -> list[dict[str, Any]]:
    """The JSON objects that ``python -m MODULE words`` prints, one on a line; it must end without error."""
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def compose(*words: str, root: str = "config") -> DictConfig:
    """The configuration that these overrides compose to, as a run receives it."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose(root, overrides=list(words), return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


@functools.cache
def _composed_once(root: str, *words: str) -> DictConfig:
    return compose(*words, root=root)


def composed_with(root: str, paths: dict[str, str], *words: str) -> DictConfig:
    """The same with paths, which differ from test to test: the overrides are composed once."""
    cfg = copy.deepcopy(_composed_once(root, *words))
    for key, path in paths.items():
        OmegaConf.update(cfg, key, path)
    return cfg


def settings(*words: str) -> Settings:
    return read_settings(read_sections(compose(*words)))


@functools.cache
def class_of(group: str, name: str, base: type[Any]) -> Any:
    """The class that a YAML of a group names; None where it leaves that to another YAML."""
    yaml = OmegaConf.load(CONF / group / f"{name}.yaml")
    target = OmegaConf.select(yaml, "_target_") or OmegaConf.select(yaml, f"{group}._target_")
    return load_class(str(target), base, group) if target else None


def may_meet(backbone: str, objective: str, task: str) -> bool:
    """False where the classes refuse each other: composing would only say so more slowly."""
    model = class_of("backbone", backbone, Backbone)
    form = class_of("objective", objective, Objective)
    data = class_of("task", task, Task)
    if form is None:
        return True
    unfit = model and form.missing_capability(model.capabilities) is not None
    return not (unfit or (data and form.incompatibility(data) is not None))


def task(*words: str) -> Task:
    """The task that these overrides choose."""
    chosen = settings(*words)
    return chosen.task_class(chosen.task)  # type: ignore[call-arg]


def train(*words: str) -> Path:
    """Trains one cell in this process and gives its run folder."""
    chosen = settings(*words)
    run_training(chosen)
    return chosen.folder


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


TIMING = ("seconds", "device_seconds", "tokens_per_second", "data_share")


def untimed(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what a clock decides."""
    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows(folder)]


def newest_checkpoint(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*"))


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if it is missing."""
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")), default=0)
