"""The project files agree with each other."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests import ROOT, SOURCE

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_names_version_and_license_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert (ROOT / "LICENSE").read_text().split()[:2] == ["Apache", "License"]


def test_the_package_says_that_it_is_typed() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert (SOURCE / "archbench" / "py.typed").exists()
    assert "py.typed" in data["archbench"]


def test_the_changelog_has_a_section_for_each_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    first, *others = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert first == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+(rc\d+)?\] - \d{4}-\d\d-\d\d", section) for section in others)
    if ".dev" not in PROJECT["version"]:
        assert others[0].startswith(f"[{PROJECT['version']}]")


def test_workflows_hooks_and_templates_are_yaml() -> None:
    files = [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")]
    assert len(files) >= 8
    for file in files:
        assert yaml.safe_load(file.read_text()), file
    workflows = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").iterdir()}
    makefile = (ROOT / "Makefile").read_text()
    assert ".ci/run" in workflows["ci"]
    for text in workflows.values():
        for target in re.findall(r"make ([\w-]+)", text):
            assert f"\n{target}: " in makefile
