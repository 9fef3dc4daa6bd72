"""The GPU set: its arithmetic, what becomes of a part that fails, and the whole in miniature on a CPU."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import ROOT

FOLDER = ROOT / "benchmarks"


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
    monkeypatch.setattr(gpu_set, "PARTS", {"mfu": 60, "moe": 3, "scan": 60})
    monkeypatch.setattr(gpu_set, "GRACE", 0)
    args = argparse.Namespace(device="cpu", tiny=True)
    errors = {"mfu": "ended with status 1: the driver went away", "moe": "killed after 3 s", "scan": None}
    for part, error in errors.items():
        found = gpu_set.run(part, args)
        assert found["rows"] == [{"family": "decoder"}]
        assert found["error"] == error


def test_ctrl_c_while_pytorch_loads_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\n"
        "try: os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"
        "except BaseException: pass\n"
    )
    done = gpu(tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "gpu.sh: interrupted\n")


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
