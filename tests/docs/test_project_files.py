"""The project files agree with each other."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_names_version_and_license_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert (ROOT / "LICENSE").read_text().split()[:2] == ["Apache", "License"]


def test_every_package_says_that_it_is_typed() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    data = tool["setuptools"]["package-data"]
    for package in tool["mypy"]["packages"]:
        if package == "tests":
            continue
        assert (ROOT / package / "py.typed").exists()
        assert "py.typed" in data[package]


def test_the_changelog_has_one_section_until_the_first_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == ["[Unreleased]"]


def test_workflows_hooks_and_templates_are_yaml() -> None:
    files = [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")]
    assert len(files) >= 4
    for file in files:
        assert yaml.safe_load(file.read_text()), file
    assert ".ci/run" in (ROOT / ".github/workflows/ci.yml").read_text()
