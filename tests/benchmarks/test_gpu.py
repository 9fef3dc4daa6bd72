"""The GPU set: its arithmetic, what becomes of a part that fails, and the whole in miniature on a CPU."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Python runs a script of the folder."""
    monkeypatch.syspath_prepend(str(FOLDER))


def gpu(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(FOLDER / "gpu.sh"), *words],
        cwd=folder,
        env=inherited | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("name", "flops", "bandwidth"),
    [
        ("NVIDIA H200", 989e12, 4.8e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 3.35e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 2.0e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 2.0e12),
        ("NVIDIA L4", 121e12, 0.30e12),
        ("NVIDIA GeForce RTX 4090", 165e12, 1.01e12),
    ],
)
def test_the_peaks_of_known_cards(name: str, flops: float, bandwidth: float) -> None:
    from gpu_cards import card_named

    assert card_named(name) == (flops, bandwidth)


@pytest.mark.parametrize(
    "name", ["NVIDIA L40S", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA A100 80GB PCIe MIG 1g.10gb", "CPU"]
)
def test_a_card_of_another_form_has_no_peaks(name: str) -> None:
    from gpu_cards import card_named

    assert card_named(name) is None


def test_shares_are_never_above_one() -> None:
    from gpu_cards import bandwidth_shares, card_named, flops_shares

    card, measured = (
        card_named("NVIDIA H200"),
        {"matmul_flops_per_second": 8e14, "memory_bytes_per_second": 4e12},
    )
    assert flops_shares(4e14, measured, card) == {
        "mfu_of_matmul": pytest.approx(0.5),
        "mfu_of_peak": pytest.approx(4e14 / 989e12),
    }
    assert flops_shares(9e14, measured, None) == {"mfu_of_matmul": None, "mfu_of_peak": None}
    assert bandwidth_shares(2.4e12, {}, card) == {
        "share_of_memory_rate": None,
        "share_of_peak": pytest.approx(0.5),
    }


def test_a_part_that_fails_keeps_its_rows_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_set

    (tmp_path / "gpu_part.py").write_text(
        "import sys, time\n"
        'print(\'{"family": "decoder"}\', flush=True)\n'
        "if sys.argv[1] == 'moe': time.sleep(60)\n"
        "if sys.argv[1] == 'mfu': raise SystemExit('the driver went away')\n"
    )
    monkeypatch.setattr(gpu_set, "FOLDER", tmp_path)
    monkeypatch.setattr(gpu_set, "PARTS", {"mfu": 60, "moe": 1, "scan": 60})
    monkeypatch.setattr(gpu_set, "GRACE", 0)
    args = argparse.Namespace(device="cpu", tiny=True)
    errors = {"mfu": "ended with status 1: the driver went away", "moe": "killed after 1 s", "scan": None}
    for part, error in errors.items():
        found = gpu_set.run(part, args)
        assert found["rows"] == [{"family": "decoder"}]
        assert found["error"] == error


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


def test_ctrl_c_while_pytorch_loads_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\n"
        "try: os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"
        "except BaseException: pass\n"
    )
    done = gpu(tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "gpu.sh: interrupted\n")


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


def test_a_cell_that_fails_is_a_row_and_the_next_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    import gpu_part

    def fail() -> dict[str, float]:
        raise MemoryError("no room\nfor it")

    def late() -> dict[str, float]:
        raise AssertionError("there is no time for this one")

    gpu_part.run([({"size": 1}, fail), ({"size": 2}, lambda: {"seconds": 1.0})], deadline=float("inf"))
    gpu_part.run([({"size": 3}, late)], deadline=0.0)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"size": 1, "error": "MemoryError: no room"},
        {"size": 2, "seconds": 1.0},
        {"size": 3, "error": "no time left"},
    ]


def test_the_parts_together_take_less_than_20_minutes() -> None:
    import gpu_set

    assert sum(gpu_set.PARTS.values()) + len(gpu_set.PARTS) * gpu_set.GRACE < 20 * 60


def test_mamba2_on_the_portable_path_gets_the_batch_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At width 2048 and 48 layers, eight sequences take 134 GiB there."""
    import gpu_train

    batches = {}
    for problem in ("", "mamba_ssm: ModuleNotFoundError"):
        monkeypatch.setattr(gpu_train, "import_problem", lambda problem=problem: problem)
        batches[problem] = [gpu_train.fitting("mamba2", size).batch for size in gpu_train.SIZES]
        assert [gpu_train.fitting("decoder", size) for size in gpu_train.SIZES] == list(gpu_train.SIZES)
    assert list(batches.values()) == [[16, 16, 8], [16, 16, 4]]


def test_without_a_device_there_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu_set

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.sh"])
    monkeypatch.delenv("ARCHBENCH_GPU_DEVICE", raising=False)
    with pytest.raises(SystemExit) as ended:
        gpu_set.main()
    # A text is what Python prints as the process ends, with status 1.
    assert ended.value.code == "gpu.sh: no CUDA device here; --device cpu --tiny runs the set in miniature"
    assert capsys.readouterr().out == ""


def test_the_whole_set_in_miniature(tmp_path: Path) -> None:
    done = gpu(tmp_path, ARCHBENCH_GPU_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["tiny"]
    assert found["machine"]["device"] == "CPU"
    assert all(found["machine"][key] for key in ("torch", "date", "commit"))
    parts = found["parts"]
    assert list(parts) == ["rates", "warm", "mfu", "moe", "scan", "decode"]
    rows = {name: part["rows"] for name, part in parts.items()}
    assert not [row for part in rows.values() for row in part if "error" in row]
    assert {row["family"] for row in rows["mfu"]} == {
        "decoder",
        "encoder",
        "encoder_decoder",
        "mamba",
        "mamba2",
        "moe",
        "masked_diffusion",
    }
    assert all(0 < row["mfu_of_matmul"] < 1 and row["mfu_of_peak"] is None for row in rows["mfu"])
    assert rows["moe"][1]["times_dense_flops"] == pytest.approx(1, abs=0.02)
    assert all(row["note"].startswith("mamba_ssm") for row in rows["scan"] if row["path"] == "mamba_ssm")
    assert [row["note"].partition(" or ")[0] for row in rows["warm"]] == ["mamba_ssm"] * 2
    assert all(row["difference"] < 1e-3 for row in rows["scan"] if row["path"] == "torch")
    assert {row["batch"] for row in rows["decode"]} == {1, 8, 64}
    assert all(0 < row["share_of_memory_rate"] < 1 for row in rows["decode"])
    assert "decode: done" in done.stdout
    assert not list(tmp_path.glob("*.new"))
    page = (tmp_path / "gpu.md").read_text()
    assert page.startswith("# CPU\n\n**In miniature")
    assert [line for line in page.splitlines() if line.startswith("## ")] == [f"## {name}" for name in parts]
    assert f"commit {found['machine']['commit']}" in page
    assert sum(line.startswith("| decoder") for line in page.splitlines()) >= 3
