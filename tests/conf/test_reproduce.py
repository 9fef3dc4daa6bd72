"""The studies of published numbers compose, quote what they repeat, and a record of the ledger names each."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from analysis.ledger.claims import Record
from analysis.load.records import read_records
from experiments.config.folder import CONF
from tests.experiments import commands

STUDIES = sorted(path.stem for path in (CONF / "study" / "reproduce").glob("*.yaml"))


@pytest.mark.parametrize("study", STUDIES)
def test_cells_compose_and_quote_what_they_repeat(study: str) -> None:
    """Not every cell, but enough to meet each swept value once."""
    yaml = OmegaConf.load(CONF / "study" / "reproduce" / f"{study}.yaml")
    assert yaml.study.name == study
    assert yaml.study.published
    params = OmegaConf.select(yaml, "hydra.sweeper.params") or {"seed": "0"}
    swept = {str(key): str(values).split(",") for key, values in params.items() if key != "seed"}
    for index in range(max(map(len, swept.values()), default=1)):
        words = [f"{key}={values[index % len(values)]}" for key, values in swept.items()]
        assert commands.settings(f"study=reproduce/{study}", "device=cpu", *words).study == study


def test_a_record_names_each_study() -> None:
    records = read_records(CONF.parent / "docs" / "results" / "ledger", Record)
    named = {word for record in records.values() for word in record.command.split()}
    assert {f"study=reproduce/{study}" for study in STUDIES} <= named
