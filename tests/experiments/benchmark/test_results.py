from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rich.console

from archbench.experiments.benchmark.results import append, check_file, read_rows, render
from archbench.experiments.runtime.errors import ConfigError, DataError


def row(**changes: Any) -> dict[str, Any]:
    measured = {
        "backbone": "mamba", "mode": "decode", "context": 2048, "batch_size": 8, "status": "complete",
        "message": None, "precision": "fp32", "vocab_size": 256, "parameters_body": 100_000, "threads": 2,
        "processor": "a processor", "torch": "2", "kernels": '{"scan": "torch"}', "stable": True,
        "seconds_median": 0.004, "seconds_first_quartile": 0.003, "seconds_third_quartile": 0.005,
        "tokens_per_second": 2000.0, "flops": 4e6, "matmul_share": 0.125, "matmul_flops_per_second": 8e9,
        "state_bytes": 2048, "peak_memory_bytes": 3 * 2**20, "base_memory_bytes": 2 * 2**20,
    }  # fmt: skip
    return measured | changes


FAILED = {"backbone": "mamba", "mode": "train", "context": 64, "batch_size": 8, "status": "oom"}


def text(rows: list[dict[str, Any]]) -> str:
    console = rich.console.Console(width=200)
    with console.capture() as capture:
        console.print(render(rows))
    return capture.get()


@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_rows_are_added_whatever_they_lack(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    assert read_rows(path) == []
    for one in (FAILED, row(), row(context=4096, state_bytes=None)):
        check_file(path)
        append(path, one)
    found = read_rows(path)
    assert [one["context"] for one in found] == [64, 2048, 4096]
    assert [one["status"] for one in found] == ["oom", "complete", "complete"]
    assert found[1]["seconds_median"] == 0.004
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_table_shows_times_shares_and_failures() -> None:
    lines = [" ".join(line.split()) for line in text([row(), FAILED]).splitlines()]
    assert "decode 2,048 8 4 3 to 5 2k 4M 12.5% 2 KiB 3 MiB 1 MiB" in lines
    assert "train 64 8 oom - - - - - - -" in lines
    assert "kernels: scan: torch; matrix products reach 8GFLOP/s" in lines
    assert "*" not in text([row()])
    assert "4 *" in text([row(stable=False)])
    assert "nothing was measured" in text([FAILED])


def test_the_table_shows_only_columns_that_some_row_fills() -> None:
    plain = text([row()])
    assert "passes" not in plain
    assert "bytes/" not in plain
    filled = row(
        mode="sample", steps=16, passes=20, state_bytes=None, bytes_per_token=2048.0, memory_share=0.5
    )
    lines = [" ".join(line.split()) for line in text([filled, row(matmul_share=None)]).splitlines()]
    assert "sample 2,048 8 16 20 4 3 to 5 2k 4M 12.5% 2 KiB 50.0% - 3 MiB 1 MiB" in lines
    assert "decode 2,048 8 - - 4 3 to 5 2k 4M - - - 2 KiB 3 MiB 1 MiB" in lines


def test_the_table_says_which_rows_are_of_the_largest_batch() -> None:
    lines = [" ".join(line.split()) for line in text([row(batch_choice="largest")]).splitlines()]
    assert "decode 2,048 8 max 4 3 to 5 2k 4M 12.5% 2 KiB 3 MiB 1 MiB" in lines
    assert any(line.startswith("max: the largest batch") for line in lines)
    none = text([row(), FAILED | {"batch_choice": "largest"}])
    assert "none fits" in none
    assert "max: " not in text([row(), FAILED])


def test_the_heading_names_the_kernels_of_all_rows() -> None:
    other = row(kernels='{"scan": "cpp"}')
    assert "kernels: scan: torch or cpp;" in text([row(), other])


def test_files_that_cannot_take_rows_are_refused(tmp_path: Path) -> None:
    for name, message in (("rows.csv", "ends in .parquet or .json"), ("no/rows.json", "there is no folder")):
        with pytest.raises(ConfigError, match=message):
            check_file(tmp_path / name)
    (tmp_path / "broken.parquet").write_text("no parquet")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "broken.json").write_text("{")
    for name in ("broken.parquet", "other.json", "broken.json"):
        with pytest.raises(DataError, match="name another file") as caught:
            check_file(tmp_path / name)
        assert "\n" not in str(caught.value)
