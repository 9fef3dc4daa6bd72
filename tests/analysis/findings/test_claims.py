"""Records of claims: what they must say, and that ours name runs that can decide them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from archbench.analysis.declared.records import read_record, read_records
from archbench.analysis.declared.runs import listed
from archbench.analysis.declared.tracks import read_track
from archbench.analysis.findings.claims import Claim
from archbench.experiments.runtime.errors import DataError
from tests import ROOT

RECORDS = ROOT / "docs" / "findings"


def record(folder: Path, **changes: Any) -> Path:
    """Write the record of a claim, with some of its fields changed."""
    words = dict.fromkeys(("claim", "source", "refuted_by", "known", "setting", "not_shown"), "words")
    runs = {"track": "cpu", "workload": "text", "model": {"backbone": "s4"}, "other": {"backbone": "decoder"}}
    path = folder / "one.yaml"
    path.write_text(yaml.safe_dump(words | runs | {"effect": 0.1} | changes))
    return path


def test_a_record_is_read(tmp_path: Path) -> None:
    assert read_record(record(tmp_path), Claim).effect == 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"refuted_by": ""}, "refuted_by is empty"),
        ({"effect": 0}, "smallest difference of interest"),
        ({"frame": "compare"}, "track or frame"),
        ({"track": ""}, "track or frame"),
        ({"other": {"backbone": "s4"}}, "two different groups"),
        ({"seeds": 2}, "takes 3"),
        ({"commands": ["archbench train study=compare"]}, "leave them out for a track"),
        ({"track": "", "frame": "compare"}, "name what trains the runs"),
        ({"relation": "beter"}, "better"),
        ({"efect": 1}, "effect"),
    ],
)
def test_a_record_that_decides_nothing_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        read_record(record(tmp_path, **changes), Claim)


def test_a_claim_of_a_track_is_trained_by_its_command(tmp_path: Path) -> None:
    (command,) = read_record(record(tmp_path), Claim).training_commands
    assert command == "archbench track cpu workloads=text backbones=s4,decoder --own-runs"


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDS.glob("*.yaml")))
def test_the_commands_of_a_record_train_the_runs_it_is_decided_by(name: str) -> None:
    claim = read_record(RECORDS / f"{name}.yaml", Claim)
    if claim.track:
        return  # the command is made from the fields that the next test holds against the track
    *_, last = (shlex.split(command) for command in claim.training_commands)
    assert last[:2] == ["archbench", "train"]
    runs = listed(last[2:])
    assert set(runs["backbone"]) == {claim.model["backbone"], claim.other["backbone"]}
    assert set(runs["task"]) == {claim.workload}
    assert (runs.groupby("backbone")["seed"].nunique() >= claim.seeds).all()


def test_the_records_name_workloads_and_models_of_their_track() -> None:
    for name, claim in read_records(RECORDS, Claim).items():
        if claim.track:
            track = read_track(claim.track)
            assert track.workload(claim.workload).name == claim.workload, name
            assert {claim.model["backbone"], claim.other["backbone"]} <= set(track.backbones), name
            assert claim.seeds <= len(track.seeds), name
