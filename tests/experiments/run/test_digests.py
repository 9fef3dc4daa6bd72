"""The digests of ten stored configurations, which may not change from here on.

A digest names the folder of a run, its W&B id, and whether it is done already. A change of the code that
changes one of these digests makes every finished run unknown: mend the code (a new setting whose plain value
is as before stays out of the digest, see ``result_settings``), and leave the files of ``digests`` alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.config.sections import read_sections
from experiments.run.settings import read_settings
from tests import ROOT
from tests.experiments import commands
from tests.experiments.run.digests import FOLDER, WORDS


def recorded(name: str) -> tuple[str, dict[str, Any]]:
    """Return the digest and the configuration of a file of ``digests``."""
    stored = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    assert isinstance(stored, dict)
    return str(stored["digest"]), stored["configuration"]


def digest(configuration: dict[str, Any]) -> str:
    """Return the digest of a configuration as the code computes it now."""
    commands.compose()  # ``init_from`` looks at the overrides on the command line: here there are none
    return read_settings(read_sections(OmegaConf.create(configuration))).digest


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # paths of ``init_from`` are relative


@pytest.mark.parametrize("name", WORDS)
def test_a_stored_configuration_keeps_its_digest(name: str) -> None:
    expected, configuration = recorded(name)
    assert digest(configuration) == expected


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("section", ["backbone", "objective", "task"])
def test_the_digest_stays_while_a_class_moves(
    name: str, section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, configuration = recorded(name)
    if section == "backbone" and configuration["init_from"] is not None:
        pytest.skip("init_from says which class the backbone is")
    module, _, cls = configuration[section]["_target_"].rpartition(".")
    home = f"moved_{name}_{section}"
    (tmp_path / f"{home}.py").write_text(f"import {module} as old\n\n\nclass {cls}(old.{cls}):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    moved = {**configuration[section], "_target_": f"{home}.{cls}"}
    assert digest({**configuration, section: moved}) == expected
