"""The GPU set with faults in a part: what each costs, what --resume repeats, which outputs are rejected."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FAULTY_PART = """
import json, os, signal, subprocess, sys, time

part = sys.argv[1]
print(json.dumps({"part": part, "seconds": 1.0, "flops": 1e9}), flush=True)
if part == os.environ.get("FAULTY"):
    match os.environ["FAULT"]:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            print('{"part": "half a', end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "exception":
            sys.stderr.buffer.write(b"\\xff\\n")
            raise RuntimeError("CUDA error: device-side assert triggered")
        case "memory":
            print(json.dumps({"part": part, "error": "OutOfMemoryError: CUDA out of memory"}))
        case "hang":
            subprocess.Popen(["sleep", "600"])
            time.sleep(600)
        case name:
            os.kill(os.getppid(), signal.Signals[name])
            time.sleep(600)
"""
FAULTS = {
    "crash": "killed by SIGSEGV",
    "killed": "killed by SIGKILL",
    "exception": "ended with status 1: RuntimeError: CUDA error: device-side assert triggered",
    "memory": "1 of 2 rows failed",
    "hang": "killed after 3 s",
    "SIGINT": "interrupted",
    "SIGTERM": "interrupted",
    "SIGHUP": "interrupted",
}


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """Ignore the signals unless the set handles them: they must not end pytest. Restore its handlers."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def faulty_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_signals: None
) -> Callable[..., dict[str, Any]]:
    """Run the set with a fault in a part; return its results. The parts measure nothing."""
    import gpu_set

    (tmp_path / "gpu_part.py").write_text(FAULTY_PART)
    monkeypatch.setattr(gpu_set, "FOLDER", tmp_path)
    monkeypatch.setattr(gpu_set, "GRACE", 0)
    output = tmp_path / "gpu.json"

    def run(*words: str, faulty: str = "", fault: str = "") -> dict[str, Any]:
        monkeypatch.setenv("FAULTY", faulty)
        monkeypatch.setenv("FAULT", fault)
        hangs = fault == "hang" or fault.startswith("SIG")
        limits = {part: 3 if part == faulty and hangs else 60 for part in gpu_set.PARTS}
        monkeypatch.setattr(gpu_set, "PARTS", limits)
        monkeypatch.setattr(sys, "argv", ["gpu.sh", "--device", "cpu", "--output", str(output), *words])
        gpu_set.main()
        return dict(json.loads(output.read_text()))

    return run


@pytest.mark.parametrize(
    ("faulty", "fault"),
    [
        ("rates", "crash"),
        ("warm", "hang"),
        ("mfu", "memory"),
        ("moe", "exception"),
        ("warm", "SIGINT"),
        ("scan", "SIGTERM"),
        ("moe", "SIGHUP"),
        ("decode", "killed"),
    ],
)
def test_a_fault_in_a_part_costs_no_other_part_and_resume_repeats_it_alone(
    faulty: str,
    fault: str,
    faulty_set: Callable[..., dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match=f"not whole: {faulty}; --resume"):
        faulty_set(faulty=faulty, fault=fault)
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    names = ["rates", "warm", "mfu", "moe", "scan", "decode"]
    assert list(parts) == (names[: names.index(faulty) + 1] if FAULTS[fault] == "interrupted" else names)
    assert {name: part["error"] for name, part in parts.items() if part["error"]} == {faulty: FAULTS[fault]}
    assert all(part["rows"][0]["part"] == name for name, part in parts.items())
    assert f"{faulty}: {FAULTS[fault]}" in (tmp_path / "gpu.md").read_text()
    capsys.readouterr()
    repaired = faulty_set("--resume")["parts"]
    assert not [part for part in repaired.values() if part["error"]]
    kept = [
        line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if line.endswith(": kept")
    ]
    assert kept == [name for name, part in parts.items() if not part["error"]]
    assert set(repaired) == set(names)


def test_a_second_hangup_does_not_stop_the_writing(
    faulty_set: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_set

    write = gpu_set.write

    def write_disturbed(path: Path, results: dict[str, Any]) -> None:
        if "moe" in results["parts"]:
            os.kill(os.getpid(), signal.SIGHUP)
        write(path, results)

    monkeypatch.setattr(gpu_set, "write", write_disturbed)
    with pytest.raises(SystemExit, match="not whole: moe"):
        faulty_set(faulty="moe", fault="SIGHUP")
    moe = json.loads((tmp_path / "gpu.json").read_text())["parts"]["moe"]
    assert (len(moe["rows"]), moe["error"]) == (1, "interrupted")


def test_nohup_is_respected(restored_signals: None) -> None:
    import gpu_set

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    gpu_set.end_once_by_signals()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(("name", "more"), [("gpu.json", ()), ("gpu.md", ()), ("gpu.md", ("--resume",))])
def test_existing_files_are_not_overwritten(
    name: str,
    more: tuple[str, ...],
    faulty_set: Callable[..., dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(SystemExit) as ended:
        faulty_set("--parts", "rates", *more)
    assert ended.value.code == 2
    message = f"{name} exists: --resume continues a JSON file, or name another --output"
    assert message in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.glob("gpu.*")] == ["precious"]


def test_resume_keeps_failed_parts_until_they_run_and_repeats_named_ones(
    faulty_set: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "gpu.json"
    with pytest.raises(SystemExit, match="not whole: decode"):
        faulty_set(faulty="decode", fault="memory")
    before = json.loads(output.read_text())["parts"]
    capsys.readouterr()
    with pytest.raises(SystemExit, match="not whole: decode"):
        faulty_set("--resume", "--parts", "moe")
    after = json.loads(output.read_text())["parts"]
    assert after["decode"] == before["decode"]
    assert list(after) == list(before)
    ran = [line for line in capsys.readouterr().out.splitlines() if "at most" in line]
    assert ran == ["moe, at most 60 s ..."]


def test_a_repeated_part_that_fails_does_not_replace_a_whole_one(
    faulty_set: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    before = faulty_set()["parts"]["moe"]
    with pytest.raises(SystemExit, match="not whole: moe"):
        faulty_set("--resume", "--parts", "moe", faulty="moe", fault="crash")
    after = json.loads((tmp_path / "gpu.json").read_text())["parts"]["moe"]
    assert after == before | {"note": "earlier result kept; the last run was worse: killed by SIGSEGV"}
    assert after["note"] in (tmp_path / "gpu.md").read_text()
    assert "note" not in faulty_set("--resume", "--parts", "moe")["parts"]["moe"]


def test_the_result_with_more_good_rows_is_better() -> None:
    from gpu_set import better

    def result(good: int, bad: int) -> dict[str, Any]:
        rows = [{"seconds": 1.0}] * good + [{"error": "no memory"}] * bad
        return {"rows": rows, "error": f"{bad} failed" if bad else None}

    assert better(None, result(0, 2)) == result(0, 2)
    assert better(result(1, 2), result(2, 1)) == result(2, 1)
    assert better(result(2, 0), result(3, 1)) == result(3, 1)
    assert better(result(2, 1), result(1, 2))["rows"] == result(2, 1)["rows"]
    assert better(result(2, 0), result(1, 0))["rows"] == result(2, 0)["rows"]


@pytest.mark.parametrize("text", ["", '{"machine": {"dev', "{}", "[]", "3", '{"parts": 3}', "\xff"])
def test_resume_refuses_what_it_did_not_write(
    text: str, faulty_set: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "gpu.json"
    output.write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit) as ended:
        faulty_set("--resume")
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"gpu.sh: --resume: {output} is no whole JSON file of gpu.sh; name another --output\n"
    )
    assert [path.read_text("latin-1") for path in tmp_path.glob("gpu.*")] == [text]


@pytest.mark.parametrize("folder", ["gpu.json", "gpu.md"])
def test_a_folder_is_no_output(
    folder: str, faulty_set: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if folder == "gpu.md":
        faulty_set()
        (tmp_path / folder).unlink()
    (tmp_path / folder).mkdir()
    with pytest.raises(SystemExit) as ended:
        faulty_set("--resume")
    assert ended.value.code == 2
    assert re.fullmatch(rf"gpu.sh: .*{folder} cannot be .*: Is a directory\n", capsys.readouterr().err)
    assert not list(tmp_path.glob("*.new"))


def test_a_file_that_cannot_be_written_is_one_line(
    faulty_set: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        faulty_set("--output", "/proc/gpu.json")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("gpu.sh: --output: /proc/gpu.json cannot be written: ")


def test_results_of_another_machine_are_not_resumed(
    faulty_set: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = faulty_set()
    results["machine"]["torch"] = "1.0"
    (tmp_path / "gpu.json").write_text(json.dumps(results))
    with pytest.raises(SystemExit) as ended:
        faulty_set("--resume")
    assert ended.value.code == 2
    assert "was measured with torch 1.0, this is" in capsys.readouterr().err
