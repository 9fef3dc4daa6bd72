"""The real client of W&B in online mode, against a server of ours that accepts, hangs, resets and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.experiments.tracking.processes import API_KEY, KEY, child
from tests.experiments.tracking.wandb_server import Run, Server, serving

START, FINISH = 4, 6
"""Seconds that a start and an end may wait in these tests; a real run waits longer."""
BODY = """
    weights_and_biases.INIT_TIMEOUT, weights_and_biases.FINISH_TIMEOUT = {start}, {finish}
    (FOLDER / "result.json").write_text("{{}}")
    begun = time.monotonic()
    tracker = start(mode="online")
    times = {{"start": time.monotonic() - begun, "row": 0.0}}
    for step in {steps}:
        begun = time.monotonic()
        tracker.log(train(step))
        times["row"] = max(times["row"], time.monotonic() - begun)
    metrics = [{{"split": "test", "name": "bits_per_byte", "value": 2.5}}]
    result = result({{"metrics": metrics, "training": {{"flops": 7.0}}}})
    begun = time.monotonic()
    tracker.close({result}, {code})
    times["close"] = time.monotonic() - begun
    print(json.dumps({{**times, "failed": tracker.failed}}))
"""


def mirror(
    server: Server, folder: Path, steps: str = "range(20)", result: str = "result", code: int = 0
) -> tuple[dict[str, Any], CompletedProcess[str]]:
    """Run a process that mirrors rows; return its times, and what it printed."""
    folder.mkdir(exist_ok=True)
    body = BODY.format(start=START, finish=FINISH, steps=steps, result=result, code=code)
    done = child(folder, body, WANDB_API_KEY=API_KEY, WANDB_BASE_URL=server.url)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done


def steps_of(run: Run) -> list[int]:
    return [row["progress/step"] for row in run.history]


@pytest.mark.full
def test_the_server_receives_the_record(tmp_path: Path) -> None:
    with serving() as server:
        times, done = mirror(server, tmp_path / "run")
        (run,) = server.runs.values()
    assert done.stderr == ""
    assert not times["failed"]
    assert (run.name, run.project, run.exit_codes) == (KEY, "pilot", [0])
    assert "status:complete" in run.tags
    assert steps_of(run) == list(range(20))
    expected = {"progress/tokens": 64 * 7, "train/loss": 0.5, "train/learning_rate": 0.003}
    assert {key: run.history[7][key] for key in expected} == expected
    assert run.config["cfg"]["hub"] == {"api_key": "<redacted>", "name": "visible-marker"}
    assert run.summary["result/metrics/test/bits_per_byte"] == 2.5
    assert "record/result.json" in run.files
    assert b"canary" not in b"".join(run.files.values())


@pytest.mark.full
def test_a_resumed_run_appends(tmp_path: Path) -> None:
    with serving() as server:
        mirror(server, tmp_path / "run", result="None", code=75, steps="range(5)")
        (run,) = server.runs.values()
        assert (steps_of(run), run.exit_codes, run.preempting) == (list(range(5)), [75], True)
        mirror(server, tmp_path / "run", steps="[*range(4), *range(4, 9)]")
    assert steps_of(run) == list(range(9))
    assert run.exit_codes == [75, 0]


PASSING: dict[str, dict[str, list[int | str]]] = {
    "too many requests": {"file_stream": [429]},
    "a reset": {"file_stream": ["reset"]},
    "an error of the server at the start": {"UpsertBucket": [500]},
}


@pytest.mark.full
@pytest.mark.parametrize("what", PASSING)
def test_what_passes_costs_nothing(tmp_path: Path, what: str) -> None:
    with serving() as server:
        server.failures.update(PASSING[what])
        times, done = mirror(server, tmp_path / "run")
        (run,) = server.runs.values()
    assert (times["failed"], done.stderr) == (False, "")
    assert steps_of(run) == list(range(20))
    assert run.exit_codes == [0]


LASTING: dict[str, dict[str, list[int | str]]] = {
    "rows refused (401)": {"file_stream": ["401!"]},
    "rows refused (400)": {"file_stream": ["400!"]},
    "rows answered with 500": {"file_stream": ["500!"]},
    "rows that hang": {"file_stream": ["hang!"]},
    "files refused (403)": {"upload": ["403!"]},
    "everything refused (401)": {"*": ["401!"]},
    "everything hangs": {"*": ["hang!"]},
    "everything is reset": {"*": ["reset!"]},
}


@pytest.mark.full
@pytest.mark.parametrize("what", LASTING)
def test_what_lasts_is_said_once_holds_nothing_up_and_is_made_up_for(tmp_path: Path, what: str) -> None:
    with serving() as server:
        server.failures.update(LASTING[what])
        times, done = mirror(server, tmp_path / "run")
        (line,) = done.stderr.splitlines()
        assert "warning: W&B is off for the rest of this run" in line
        assert API_KEY not in line
        assert times["failed"]
        assert times["row"] < 1, "a step of training waited"
        assert times["start"] < 3 * START
        assert times["close"] < 3 * FINISH
        server.failures.clear()
        times, done = mirror(server, tmp_path / "run")  # as archbench wandb sync does
        (run,) = server.runs.values()
    assert (times["failed"], done.stderr) == (False, "")
    assert steps_of(run) == list(range(20))
    assert "record/result.json" in run.files
