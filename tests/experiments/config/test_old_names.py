"""Names of earlier versions are read as those of today."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder
from archbench.experiments.config.backbone_file import class_paths
from archbench.experiments.config.old_names import current_name, user_code
from archbench.experiments.config.structured import load_class
from archbench.experiments.config.yaml_files import config_defaults
from tests import CONF, ROOT
from tests.experiments.commands import compose

OLD = "architectures.backbones.decoder.Decoder"


@pytest.mark.parametrize(
    ("name", "current"),
    [
        (OLD, f"archbench.{OLD}"),
        ("experiments.training.schedules.cosine", "archbench.experiments.training.schedules.cosine"),
        ("experiments.mine.Model", "experiments.mine.Model"),
        ("architectures", "architectures"),
        ("analysis.load.study", "analysis.load.study"),
        (f"archbench.{OLD}", f"archbench.{OLD}"),
    ],
)
def test_a_name_of_a_module_that_exists_is_changed(name: str, current: str) -> None:
    assert current_name(name) == current


def test_an_old_path_names_the_same_class_and_settings() -> None:
    assert load_class(OLD, Backbone, "backbone") is Decoder
    assert config_defaults(OLD) == config_defaults(f"archbench.{OLD}") != {}


def test_an_old_yaml_is_composed_like_the_present_one(tmp_path: Path) -> None:
    (tmp_path / "backbone").mkdir()
    text = (CONF / "backbone" / "decoder.yaml").read_text()
    assert f"_target_: archbench.{OLD}" in text
    (tmp_path / "backbone" / "old.yaml").write_text(text.replace("archbench.", ""))
    old = compose("backbone=old", f"hydra.searchpath=[file://{tmp_path}]").backbone
    assert old == compose("backbone=decoder").backbone


@pytest.mark.parametrize(
    "project", [("architectures", "experiments"), ("archbench.architectures", "archbench.experiments")]
)
def test_hashes_of_code_of_the_user(project: tuple[str, ...]) -> None:
    assert user_code({**dict.fromkeys(project, "0"), "mine": "1"}) == {"mine": "1"}


def test_a_module_of_the_user_may_be_called_experiments() -> None:
    code = {"archbench.architectures": "0", "archbench.experiments": "0", "experiments": "1"}
    assert user_code(code) == {"experiments": "1"}


def test_a_file_of_the_project_is_not_imported_twice() -> None:
    file = ROOT / "architectures" / "backbones" / "decoder.py"
    assert class_paths(f"{file}:Decoder") == f"archbench.{OLD}"


@pytest.mark.parametrize("name", ["architectures", "experiments", "analysis", "slurm"])
def test_old_imports_in_a_checkout_name_the_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ImportError, match=f"import archbench.{name}"):
        importlib.import_module(name)


def test_a_module_of_the_user_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "architectures" / "backbones" / "decoder.py"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert current_name(OLD) == OLD
