"""The page of a track says where in a text its models differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.load.study import load_study
from analysis.track.page import track_markdown
from analysis.track.rules import read_track
from tests.analysis.stats.test_text_slices import BITS, slices_of


@pytest.mark.parametrize("sliced", [True, False])
def test_the_slices_of_a_text_stand_on_the_page_against_the_decoder(
    write_run: Any, tmp_path: Path, sliced: bool
) -> None:
    for model, bits in BITS.items():
        for seed, factor in enumerate((0.99, 1.0, 1.02)):
            folder = write_run(model, seed, 2.5 * factor)
            record = json.loads((folder / "result.json").read_text())
            record["metrics"][0]["slices"] = slices_of(bits, factor) if sliced else None
            (folder / "result.json").write_text(json.dumps(record))
    runs = load_study(tmp_path / "runs", "compare").assign(curve="[]")
    page = track_markdown(read_track("laptop"), runs, runs.iloc[:0])
    assert ("### What a language model has learned" in page) == sliced
    assert ("| by | slice | bytes | decoder, bits per token | mamba | s4 |" in page) == sliced
    assert ("mamba's gain over decoder of 0.251 bits per byte" in page) == sliced
