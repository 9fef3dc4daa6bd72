"""The page of fidelity has a row for every preset and every study of published numbers."""

import re

import pytest
from omegaconf import OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.config.yaml_files import config_defaults
from tests import ROOT
from tests.backbones import PRESETS

NAMED = set(re.findall(r"`([\w/]+)`", (ROOT / "docs" / "fidelity.md").read_text()))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_compared_with_its_source(name: str) -> None:
    assert name in NAMED


def test_every_study_of_published_numbers_is_compared_with_its_source() -> None:
    assert {path.stem for path in (CONF / "study" / "reproduce").glob("*.yaml")} <= NAMED


def test_settings_that_the_page_names_exist() -> None:
    """A key that is renamed must be renamed there."""
    page = (ROOT / "docs" / "fidelity.md").read_text()
    text = "".join(path.read_text() for path in CONF.rglob("*.yaml"))
    targets = re.findall(r"^_target_: (.*)$", text, flags=re.MULTILINE)
    text += "".join(OmegaConf.to_yaml(OmegaConf.create(config_defaults(target))) for target in targets)
    for key in re.findall(r"([a-z_A-Z]+)=", " ".join(re.findall(r"`([^`]*)`", page))):
        assert f"{key}:" in text, key
