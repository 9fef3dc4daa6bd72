"""The last lines of a run: score with both uncertainties, extra evaluations, cost, the next command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.run.summary import closing_lines, summary
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.tracking.run_files import DataSource, DeviceUsed, GitState, Provenance, Resume
from tests.results import result, write_result


def record(value: float, **metric: Any) -> dict[str, Any]:
    score = {"value": value, "standard_error": 0.012, "items": 700, **metric}
    extra = {**score, "split": "length=256", "value": 2.5}
    training = {"flops": 9.11e11, "seconds": 75.0, "tokens": 1_200_000, "steps": 1171}
    return {"metrics": [score, extra], "training": training}


def written(tmp_path: Path, *values: float) -> Path:
    """The folder of the last of several seeds of a cell."""
    for seed, value in enumerate(values):
        folder = tmp_path / "runs" / "mine" / "decoder-text-nano-1234" / f"s{seed}"
        folder.mkdir(parents=True)
        write_result(folder, record(value))
    return folder


def test_a_complete_run_ends_with_score_cost_and_the_next_command(tmp_path: Path) -> None:
    folder = written(tmp_path, 2.0, 2.2)
    assert closing_lines(folder, result(record(2.2))) == [
        "score: test bits_per_byte 2.2000 ± 0.0120 (standard error over 700 examples)",
        "over 2 seeds: mean 2.1000, standard deviation 0.1414",
        "extra evaluation length=256 bits_per_byte 2.5000 ± 0.0120 (standard error over 700 examples)",
        "cost: 911G FLOPs, 1:15 of training steps, 1.2M tokens in 1,171 steps",
        f"next: archbench compare study=mine runs={tmp_path}/runs",
    ]


def test_a_sweep_ends_with_a_small_table_and_a_sentence(tmp_path: Path) -> None:
    study = tmp_path / "mine"
    for name, values in {"decoder": (2.0, 2.2), "mamba": (1.9,), "encoder_decoder": (3.0, 3.5)}.items():
        for seed, value in enumerate(values):
            folder = study / f"{name}-text-nano-1234" / f"s{seed}"
            folder.mkdir(parents=True)
            write_result(folder, record(value) | {"backbone": name, "cell": f"{name}-text-nano"})
    lines = summary(study)
    assert max(map(len, lines[:-1])) <= 80
    models = [line.split()[0] for line in lines if line.startswith("  ")]
    assert models == ["model", "mamba", "decoder", "encoder_decoder", "mamba"]  # the best first
    assert " 2.1000 ± 0.1414 " in lines[4]
    assert lines[-2] == "  mamba has the best mean, 1.9000; compare tests the differences."
    for path in [*study.glob("mamba*/*/result.json"), *study.glob("encoder*/*/result.json")]:
        path.unlink()
    assert not any("best mean" in line for line in summary(study))  # one model


def test_seeds_that_other_code_trained_are_said_to_be_so(tmp_path: Path) -> None:
    folder = written(tmp_path, 2.0, 2.2)
    for seed, code in enumerate("ab"):
        record_provenance(folder.with_name(f"s{seed}"), code)
    assert closing_lines(folder, result(record(2.2)))[1].startswith(
        "over 2 seeds trained with different code: mean"
    )
    record_provenance(folder.with_name("s0"), "b", earlier="a")  # resumed
    assert closing_lines(folder, result(record(2.2)))[1].startswith(
        "over 2 seeds trained with different code: mean"
    )
    record_provenance(folder.with_name("s0"), "b")
    assert closing_lines(folder, result(record(2.2)))[1].startswith("over 2 seeds: mean")


def record_provenance(folder: Path, code: str, earlier: str | None = None) -> None:
    provenance = Provenance(
        key=f"{folder.parent.name}-{folder.name}",
        git=GitState(commit=None, dirty=None, code=code),
        code={},
        versions={},
        data=DataSource(task="text", fingerprint=None),
        device=DeviceUsed(name="cpu", processor="p", threads=1, precision="fp32"),
        kernels={},
        command="train",
        resume=Resume(sittings=2, exact=True, changed={} if earlier is None else {"code": [earlier, code]}),
    )
    write_json(folder / "provenance.json", provenance.tree())


def test_one_seed_says_nothing_of_others_and_clusters_are_named(tmp_path: Path) -> None:
    found = record(2.0, clusters=28, clustered_by="document")
    lines = closing_lines(written(tmp_path, 2.0), result(found))
    assert lines[0].endswith("(standard error over 28 documents)")
    assert not any("seeds" in line for line in lines)


@pytest.mark.parametrize("error", [math.nan, "nan"])  # as computed, and as result.json has it
def test_a_single_passage_has_no_standard_error(tmp_path: Path, error: float | str) -> None:
    found = record(2.0, standard_error=error, clusters=1, clustered_by="passage of 64 tokens")
    score = closing_lines(written(tmp_path, 2.0), result(found))[0]
    assert score == "score: test bits_per_byte 2.0000 (no standard error, of 1 passage of 64 tokens)"


def test_a_run_that_ended_otherwise_says_why(tmp_path: Path) -> None:
    found = record(2.0) | {"status": "diverged", "message": "loss is nan"}
    assert closing_lines(written(tmp_path, 2.0), result(found)) == ["diverged: loss is nan"]
