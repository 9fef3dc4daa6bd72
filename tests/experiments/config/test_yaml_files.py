"""YAML files say what differs from the defaults, which are read from the source of the dataclasses."""

from __future__ import annotations

import dataclasses
import importlib
import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.config.yaml_files import config_defaults
from tests import ROOT
from tests.experiments import commands

COMPONENTS = ("backbone", "objective", "optimizer", "task")
YAMLS = [path for group in COMPONENTS for path in sorted((CONF / group).glob("*.yaml"))]
TARGETS = sorted({str(target) for path in YAMLS if (target := OmegaConf.load(path).get("_target_"))})


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, list | tuple) else value


def default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return plain(field.default_factory())
    return "???" if field.default is dataclasses.MISSING else plain(field.default)


@pytest.mark.parametrize("target", TARGETS)
def test_the_defaults_are_those_of_the_dataclass(target: str) -> None:
    module, _, name = target.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    expected = {field.name: default(field) for field in dataclasses.fields(getattr(cls, "Config", cls))}
    assert config_defaults(target) == expected
    assert repr(config_defaults(target)) == repr(expected)  # 1 is not 1.0, and keys are in order


def test_no_yaml_repeats_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    readability = importlib.import_module("readability")
    assert readability.COMPONENTS == COMPONENTS
    assert readability.repeated_yaml_values() == []


def test_a_class_of_the_user_needs_one_line_of_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shuffled.py").write_text(
        "import math\n"
        "from dataclasses import dataclass, field\n"
        "from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig\n"
        "PAIRS = 2\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class ShuffledConfig(RecallConfig):\n"
        "    num_pairs: int = 2 * PAIRS - 1\n"
        "    rounds: list[int] = field(default_factory=lambda: [PAIRS, PAIRS])\n"
        "    angle: float = math.pi\n"
        "    name: str\n"
        "class Shuffled(Recall):\n"
        "    Config = ShuffledConfig\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    read = config_defaults("shuffled.Shuffled")
    assert read["num_pairs"] == 3
    assert read["rounds"] == [2, 2]
    assert read["name"] == "???"
    assert read["power"] == config_defaults("archbench.experiments.tasks.recall.mqar.Recall")["power"]
    assert read["angle"] == math.pi


@pytest.mark.parametrize(
    ("imported", "config"),
    [("from given import *", "Config"), ("import given", "given.Config"), ("import given as g", "g.Config")],
)
def test_a_config_may_be_imported(
    imported: str, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "given.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Config:\n    width: int = 3\n"
    )
    name = f"importing_{len(imported)}"
    (tmp_path / f"{name}.py").write_text(f"{imported}\n\nclass Model:\n    Config = {config}\n")
    assert config_defaults(f"{name}.Model") == {"width": 3}


def test_bases_are_those_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "diamond").mkdir()
    (tmp_path / "diamond" / "__init__.py").touch()
    (tmp_path / "diamond" / "base.py").write_text(
        "import dataclasses\n"
        "from typing import ClassVar, Generic, TypeVar\n"
        "T = TypeVar('T')\n"
        "@dataclasses.dataclass\n"
        "class Base(Generic[T]):\n"
        "    knob: ClassVar[str] = 'x'\n"
        "    x: int = 1\n"
        "    y: int = 1\n"
    )
    (tmp_path / "diamond" / "parts.py").write_text(
        "from dataclasses import dataclass\n"
        "from .base import Base as Root\n"
        "@dataclass\n"
        "class Left(Root[int]):\n"
        "    x: int = 2\n"
        "@dataclass\n"
        "class Right(Root[int]):\n"
        "    y: int = 2\n"
        "class Both:\n"
        "    @dataclass\n"
        "    class Config(Left, Right):\n"
        "        z: int = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert config_defaults("diamond.parts.Both") == {
        "x": 2,
        "y": 1,
        "z": 3,
    }  # Left comes after Right, with its own y


@pytest.mark.parametrize(
    "target", ["nothing", "no.such.Class", "torch.nn.Module", "archbench.experiments.tasks.X", ""]
)
def test_a_class_that_is_not_there_has_no_defaults(target: str) -> None:
    """So that composing goes on, and the class is refused when the configuration is read."""
    assert config_defaults(target) == {}


def test_what_a_file_extends_wins_over_the_defaults_of_its_class() -> None:
    cfg = commands.compose("backbone=s4_listops")
    assert cfg.backbone.d_state == 4  # of the file
    assert cfg.backbone.num_layers == cfg.scale.depth  # of s4_bidirectional.yaml, which it extends
    assert cfg.backbone.dt_max == 0.1  # of the dataclass
