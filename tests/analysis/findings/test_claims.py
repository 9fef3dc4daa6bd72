"""Records of claims: what they must say, and that ours name runs that can decide them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.findings.claims import Claim
from analysis.load.records import read_record, read_records
from analysis.track.rules import read_track
from experiments.runtime.errors import DataError
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
        ({"relation": "beter"}, "better"),
        ({"efect": 1}, "effect"),
    ],
)
def test_a_record_that_decides_nothing_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        read_record(record(tmp_path, **changes), Claim)


def test_the_records_name_workloads_and_models_of_their_track() -> None:
    for name, claim in read_records(RECORDS, Claim).items():
        if claim.track:
            track = read_track(claim.track)
            assert track.workload(claim.workload).name == claim.workload, name
            assert {claim.model["backbone"], claim.other["backbone"]} <= set(track.backbones), name
            assert claim.seeds <= len(track.seeds), name
