from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.stats.run_costs import COST_HEAD, STABILITY_HEAD, cost_grid, stability_grid
from tests.results import write_result

WriteRun = Callable[..., Path]


def test_failures_are_counted(study: Path) -> None:
    rows = {(row[0], row[1]): row[2:9] for row in cost_grid(load_study(study, "compare")).rows}
    assert rows["moe", "text, nano"] == ["1", "0", "1", "0", "0", "0", "1"]
    assert rows["s4", "recall, nano"] == ["0", "3", "0", "0", "0", "0", "0"]


def recorded(folder: Path, sittings: int, **training: float) -> None:
    """Adds to what result.json says of training."""
    result = json.loads((folder / "result.json").read_text())
    result["training"] |= training
    result["resume"] = {"sittings": sittings, "exact": True, "changed": {}}
    write_result(folder, result)


def test_time_is_divided_into_waiting_compiling_and_computing(write_run: WriteRun, tmp_path: Path) -> None:
    recorded(write_run("decoder", 0), 1, seconds=60.0, data_share=0.1, compile_seconds=20.0)
    recorded(write_run("decoder", 1), 3, seconds=90.0, data_share=0.3, compile_seconds=10.0)
    folder = write_run("mamba", 0)
    frame = load_study(tmp_path / "runs", "compare")
    (folder / "result.json").unlink()  # as of a frame that came from another machine
    rows = cost_grid(frame).rows
    decoder, mamba = (dict(zip(COST_HEAD, row, strict=True)) for row in rows)
    # (20/80 + 10/100) / 2, and (54/80 + 63/100) / 2
    assert decoder["waiting for data"] == "20.0%"
    assert decoder["compiling"] == "17.5%"
    assert decoder["computing"] == "65.2%"
    assert decoder["interruptions"] == "2"
    assert decoder["hours"] == "0.042"
    assert [mamba[c] for c in ("compiling", "computing", "interruptions")] == ["-", "-", "-"]
    assert mamba["waiting for data"] == "0.4%"


def test_stability_is_counted_over_all_runs_of_an_arm(write_run: WriteRun, tmp_path: Path) -> None:
    for seed, (spikes, skipped) in enumerate(((2, 0), (1, 3))):
        folder = write_run("decoder", seed)
        recorded(folder, 1, steps=100, loss_spikes=spikes, skipped_steps=skipped)
        rows = [
            {"kind": "train", "step": step, "tokens": step, "flops": step, "seconds": step, "grad_norm": norm}
            for step, norm in ((1, 0.5), (2, "nan"), (3, 1.5 + seed))
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_run("mamba", 0, None, status="diverged", message="loss is nan")
    runs = tmp_path / "runs"
    rows = stability_grid(load_study(runs, "compare"), load_history(runs, "compare")).rows
    decoder, mamba = (dict(zip(STABILITY_HEAD, row, strict=True)) for row in rows)
    assert (decoder["gradient norm, median"], decoder["largest"]) == ("1", "2.5")  # of .5, .5, 1.5, 2.5
    assert (decoder["loss spikes"], decoder["spike score"]) == ("3", "1.50%")
    assert (decoder["steps left out"], decoder["diverged"]) == ("3", "0")
    assert (mamba["loss spikes"], mamba["spike score"], mamba["largest"]) == ("-", "-", "-")
    assert mamba["diverged"] == "1"
