"""Records are written as they were read, and a value of another type is refused with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.runtime.atomic_io import plain
from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.tracking.run_files import RunResult, parse_rows, read_result
from tests.experiments import commands
from tests.results import named, row, write_result

FOLDER = Path("mine/decoder-text-nano-ab12cd34/s0")


def read(tree: dict[str, Any]) -> RunResult:
    return RunResult.model_validate_json(json.dumps(tree), strict=True)


def test_a_result_comes_back_with_the_numbers_and_the_fields_it_had() -> None:
    numbers = {"flops": 7, "seconds": 7.0, "data_share": None, "tokens_per_second": "-inf"}
    metric = {"value": "nan", "standard_error": 0, "cluster_totals": [[1, 2.5], ["inf", 3]]}
    tree = named(FOLDER, {"training": numbers, "metrics": [metric], "references": []})
    result = read(tree)
    assert result.training is not None
    assert result.training.tokens_per_second == -math.inf
    assert math.isnan(result.metrics[0].value)
    written = json.loads(json.dumps(plain(result.tree())))
    assert {key: written[key] for key in tree if key != "metrics"} == {
        key: value for key, value in tree.items() if key != "metrics"
    }
    assert written["metrics"][0].items() >= tree["metrics"][0].items()
    assert not written.keys() & {"planned", "initial", "validation"}, "what was never set"
    assert json.dumps(written["training"]) == json.dumps(
        {key: tree["training"][key] for key in written["training"]}
    )


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"status": "finished"}, "status"),
        ({"training": {"steps": "5"}}, "training.steps"),
        ({"training": {"flops": "many"}}, "training.flops"),
        ({"metrics": [{"value": 1.0, "direction": "up"}]}, "metrics.0"),
        ({"metrics": [{"value": 1.0, "cluster_totals": [[1.0, None]]}]}, "metrics.0.cluster_totals.0.1"),
        ({"resume": {"exact": 1}}, "resume.exact"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(
    change: dict[str, Any], place: str, tmp_path: Path
) -> None:
    write_result(tmp_path, change)
    with pytest.raises(CheckpointError) as refused:
        read_result(tmp_path / "result.json", "remove it")
    assert f"result.json: is damaged ({place}: " in str(refused.value)
    assert str(refused.value).endswith("remove it")


def test_rows_come_back_as_they_were_written_and_damaged_lines_are_left_out() -> None:
    good = [
        row("train", 1, loss="nan", extra=2),
        row("validation", 2, bits=1.5),
        row("routing", 2, load=[0.5, 1]),
    ]
    bad = [
        row("train", 1, loss=None),
        row("validation", 2, bits="x"),
        row("tests", 3),
        {"kind": "train", "step": 1},
    ]
    lines = [json.dumps(each) for each in (*good, *bad)] + ['{"kind": "train", "st', "[1]", ""]
    rows = [parsed for _, parsed in parse_rows(lines)]
    assert [plain(each.tree()) for each in rows] == good
    assert rows[1].measured == {"bits": 1.5}


def test_a_run_writes_what_its_models_say(tmp_path: Path) -> None:
    words = (*commands.TINY, *commands.RECALL, f"runs={tmp_path}")
    text = (commands.train(*words) / "result.json").read_text()
    tree = json.loads(text)
    assert list(tree) == [name for name in RunResult.model_fields if name in tree]
    assert json.dumps(plain(read(tree).tree()), indent=1) + "\n" == text
