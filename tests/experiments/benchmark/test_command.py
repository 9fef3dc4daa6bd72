"""``experiments.benchmark``: what is measured, never how long it took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from archbench.architectures.kernels.cpu.decode import transformer as decode_transformer
from archbench.experiments.benchmark import timing
from archbench.experiments.benchmark.__main__ import read
from archbench.experiments.benchmark.grid import BYTES, Benchmark
from archbench.experiments.benchmark.results import append
from archbench.experiments.benchmark.worker import measure, share
from archbench.experiments.benchmark.workloads import Cell, CellConfig
from tests.experiments import commands

TINY = (
    "scale.targets.non_embedding=20000",
    "contexts=[12]", "batch_size=3", "repeats=2", "seconds=0", "warmup_seconds=0",
    "decode_tokens=5", "piece=7", "device=cpu", "device.threads=1",
)  # fmt: skip


def chosen(*words: str) -> Benchmark:
    return read(commands.compose(*TINY, *words, root="benchmark"))


def trees(benchmark: Benchmark) -> list[dict[str, Any]]:
    """What each process is told."""
    return [benchmark.order(cell) for cell in benchmark.cells()]


@pytest.fixture
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CPU_SIZES", (32,))
    monkeypatch.setattr(timing, "PASSED_BYTES", 0)


def test_a_share_above_one_is_blank() -> None:
    assert share(2.0, 8.0) == 0.25
    assert share(8.0, 8.0) == 1.0
    assert share(8.1, 8.0) is None


@pytest.mark.usefixtures("small_matrices")
@pytest.mark.parametrize(("rows", "precision"), [(16, "fp32"), (17, "fp32"), (1, "bf16")])
def test_the_decoding_path_is_the_one_that_ran(
    rows: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LayerNorm, so that there are steps in C++ wherever there is a compiler."""
    ran: list[int] = []
    real = decode_transformer.call

    def spy(name: str, fields: Any, read_BD: Tensor, *more: Any) -> None:
        ran.append(len(read_BD))
        real(name, fields, read_BD, *more)

    monkeypatch.setattr(decode_transformer, "call", spy)
    words = ("mode=[decode]", f"batch_size={rows}", f"device.precision={precision}")
    asked = chosen(*words, "backbone.block.norm=layernorm")
    row = measure(trees(asked)[-1])
    assert row["tokens"] == rows
    assert (json.loads(row["kernels"])["decoding"] == "cpp") == (rows in ran)


@pytest.mark.usefixtures("small_matrices")
@pytest.mark.parametrize("name", ["decoder", "s4", "mamba", "hybrid", "moe", "encoder_decoder"])
def test_flops_tokens_and_state_are_those_of_the_backbone(name: str) -> None:
    asked = chosen(f"backbone={name}")
    model = asked.cls(asked.config, vocab_size=BYTES, max_length=17)
    source = 12 if name == "encoder_decoder" else 0
    for tree in trees(asked):
        cell, row = tree["cell"], json.loads(json.dumps(measure(tree)))
        batch = cell["batch_size"]
        whole = batch * model.sequence_flops(12, source).total
        if cell["mode"] == "decode":
            steps = [model.step_flops(length, source).total for length in range(12, 17)]
            assert row["flops"] == pytest.approx(batch * sum(steps) / 5)
            assert (row["repeats"], row["warmup_repeats"], row["tokens"]) == (5, 11, batch)
            expected = batch * model.state_bytes(17, source)
        else:
            assert row["flops"] == (3 * whole if cell["mode"] == "train" else whole)
            assert (row["repeats"], row["warmup_repeats"], row["tokens"]) == (2, 2, 12 * batch)
            expected = None if cell["mode"] == "train" else batch * model.state_bytes(12, source)
        assert row["state_bytes"] == row["state_formula_bytes"] == expected
        assert row["kernels"] == json.dumps(model.kernels())
        reached = row["flops"] / row["seconds_median"]
        assert row["matmul_share"] == share(reached, row["matmul_flops_per_second"])
        assert row["memory_bytes_per_second"] > 0
        if cell["mode"] == "decode":
            moved = row["least_bytes"]
            assert row["bytes_per_token"] == moved / batch
            assert row["memory_share"] == share(moved / row["seconds_median"], row["memory_bytes_per_second"])
        else:
            assert row["bytes_per_token"] is row["memory_share"] is None
        assert row["passes"] is row["committed_tokens"] is None
        # The state lies beside the weights in decoding alone.
        beside = batch * model.state_bytes(12, source) if cell["mode"] == "decode" else 0
        assert 0 < row["least_bytes"] - beside <= 4 * model.parameters_by_part().active
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds_median"])
        assert row["seconds_first_quartile"] <= row["seconds_median"] <= row["seconds_third_quartile"]
        assert row["peak_memory_bytes"] >= row["base_memory_bytes"] > 0
        assert row["parameters_body"] == model.parameters_by_part().body
        assert (row["threads"], row["device"]) == (1, "cpu")


def test_decoding_of_a_decoder_by_hand() -> None:
    """One layer of width 8: weights once, and the scores and sums of 12 + 1 to 12 + 5 keys."""
    words = ("backbone.d_model=8", "backbone.d_ff=16", "backbone.num_layers=1", "scale=given")
    asked = chosen(*words, "backbone.attention.num_heads=2", "backbone.attention.num_kv_heads=1")
    cell = next(cell for cell in asked.cells() if (cell.mode, cell.batch_size) == ("decode", 1))
    found = measured(asked, cell)
    weights = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 8 * 256
    assert found.flops == 2 * weights + 4 * 8 * (13 + 14 + 15 + 16 + 17) / 5
    assert (
        found.least_bytes == 4 * weights + 2 * 12 * 4 * 4
    )  # and the keys and values of the 12 tokens before
    assert found.state_bytes == 2 * 17 * 4 * 4  # keys and values of 17 tokens, 4 channels, 4 bytes


def measured(asked: Benchmark, cell: CellConfig) -> Any:
    model = asked.cls(asked.config, vocab_size=cell.vocab_size, max_length=cell.max_length)
    return Cell(model, cell, torch.device("cpu"), "fp32").measure()


def test_prompts_are_read_in_pieces_and_single_tokens_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    read_tokens: list[tuple[int, int]] = []
    asked = chosen("contexts=[80]")
    step = asked.cls.step

    def spy(self: Any, tokens_BT: Tensor, state: Any, valid_BT: Tensor | None = None) -> Tensor:
        read_tokens.append((state.length, tokens_BT.shape[1]))
        return step(self, tokens_BT, state, valid_BT)

    monkeypatch.setattr(asked.cls, "step", spy)
    cells = {cell.mode: cell for cell in asked.cells() if cell.batch_size == 3 or cell.mode == "train"}
    measured(asked, cells["decode"])
    # 16 tokens in pieces of 7, 64 one by one as the warm-up, then those that are timed.
    singles = [(position, 1) for position in range(16, 85)]
    assert read_tokens == [(0, 7), (7, 7), (14, 2), *singles]
    read_tokens.clear()
    measured(asked, cells["prefill"])
    prompt = [(7 * piece, 7) for piece in range(11)] + [(77, 3)]
    assert read_tokens == 4 * prompt  # two of the warm-up, two timed


def test_a_training_step_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four optimizer steps on the same tokens: the weights have moved, and no gradient is left."""
    asked = chosen("mode=[train]")
    cell = next(asked.cells())
    torch.manual_seed(0)
    model = asked.cls(asked.config, vocab_size=cell.vocab_size, max_length=cell.max_length)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    Cell(model, cell, torch.device("cpu"), "fp32").measure()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name
        assert parameter.grad is None, name


@pytest.mark.usefixtures("small_matrices")
def test_backbones_that_do_not_decode_are_trained() -> None:
    asked = chosen("backbone=encoder", "mode=[train]", "device.precision=bf16")
    row = measure(trees(asked)[0])
    assert row["state_bytes"] is None
    assert row["flops"] > 0


def test_the_command_measures_prints_and_appends(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    append(path, {"mode": "train", "status": "oom"})
    words = (*TINY, "backbone=mamba", "mode=[decode]", "batch_size=1", f"output={path}")
    ended = commands.run("benchmark", *words)
    assert ended.returncode == 0, ended.stderr
    frame = pd.read_parquet(path)
    assert frame["mode"].tolist() == ["train", "decode"]
    row = frame.iloc[-1]
    assert (row["backbone"], row["class"], row["mode"], row["status"]) == (
        "mamba", "Mamba", "decode", "complete",
    )  # fmt: skip
    assert (row["context"], row["batch_size"], row["precision"], row["repeats"]) == (12, 1, "fp32", 5)
    assert json.loads(row["config"])["num_layers"] == 2
    assert "scan" in json.loads(row["kernels"])
    assert row["state_bytes"] == row["state_formula_bytes"]
    assert any(line.split()[:3] == ["decode", "12", "1"] for line in ended.stdout.splitlines())


def test_a_cell_without_enough_memory_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    huge = ("mode=[train]", "batch_size=1000000000", "contexts=[100000]", f"output={path}")
    ended = commands.run("benchmark", *TINY, *huge)
    assert ended.returncode == 5
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("error: 1 of 1 cells failed, the first mode=train context=100000")
    (row,) = json.loads(path.read_text())
    assert (row["status"], row["backbone"], row["batch_size"]) == ("oom", "decoder", 10**9)
