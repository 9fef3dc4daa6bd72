"""The tables in docs/models/hugging_face are complete, and are what the folders give today."""

from pathlib import Path

import pytest

from archbench.architectures.pretrained.checkpoint import families
from tests import ROOT
from tests.architectures.pretrained.test_damaged_folders import DAMAGE, make_whole
from tests.docs.folder_tables import (
    ABSENT,
    COLUMNS,
    EQUAL,
    FAMILIES,
    damage_row,
    parity_row,
    read_tables,
)
from tests.experiments import commands
from tests.experiments.evaluation.downstream.folder_scores import FAMILIES as SCORED
from tests.experiments.folder_round_trips import ALL, UNREAD
from tests.tiers import fast_only

PARITY, TRIPS, SCORES, DAMAGES = read_tables()
ROWS = {row[0]: row for row in [*PARITY, *DAMAGES]}


def test_every_family_and_every_damage_has_a_row() -> None:
    assert [row[0] for row in PARITY] == FAMILIES
    for family in FAMILIES:
        assert len(ROWS[family]) == 1 + len(COLUMNS), family
        assert set(ROWS[family][1:]) <= {EQUAL, ABSENT}, family
    assert [row[0] for row in DAMAGES] == [*DAMAGE]
    for damage in DAMAGE:
        assert ROWS[damage][1] == "2", damage


def test_every_family_makes_the_round_trip_and_is_scored_alike() -> None:
    assert [row[0] for row in TRIPS] == ALL
    for name, *files, losses in TRIPS:
        assert set(files) == {"but for unread rows" if name in UNREAD else EQUAL}, name
        assert float(losses) < 1e-5, name
    assert {row[0] for row in SCORES} == {*SCORED}
    for _, _, metric, ours, theirs in SCORES:
        rounding = 1e-6 if metric == "bits_per_byte" else 0.0
        assert float(ours) == pytest.approx(float(theirs), rel=rounding, abs=0.0)


def test_the_readme_counts_the_families() -> None:
    count = len({name for family in families() for name in family.model_types})
    assert f"Checkpoints of {count} Hugging Face families" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("family", fast_only(["llama", "t5", "mamba"], []))
def test_families_generate_as_the_page_says(family: str, tmp_path: Path) -> None:
    assert parity_row(family, tmp_path / family) == ROWS[family]


@pytest.mark.parametrize("damage", ["width of text", "many layers", "NaN weights", "quantized"])
def test_damages_are_refused_as_the_page_says(damage: str, tmp_path: Path) -> None:
    found = damage_row(damage, make_whole(tmp_path / "whole"), tmp_path / "folder")
    assert [found[1], found[3]] == [ROWS[damage][1], ROWS[damage][3]]


@pytest.mark.full
@pytest.mark.parametrize("damage", ["nested", "eps that is no number", "weights cut off", "a tensor twice"])
def test_the_command_ends_with_the_code_and_one_message(damage: str, tmp_path: Path) -> None:
    folder = make_whole(tmp_path / "folder")
    DAMAGE[damage][0](folder)
    process = commands.start("generate", f"run={folder}", "prompt=x", "device=cpu")
    out, said = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert "Traceback" not in said
    assert ROWS[damage][3].removesuffix("...") in said.replace(f"{folder}/", "").replace(f"{folder}: ", "")
