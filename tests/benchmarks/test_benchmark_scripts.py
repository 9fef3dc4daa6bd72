"""The scripts of ``benchmarks/``: their arithmetic by hand, and small runs of the whole."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests import ROOT

FOLDER = ROOT / "benchmarks"


def script(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "scan.py"), "--threads", "1", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_the_exponent_is_that_of_a_power() -> None:
    from growth import exponent

    lengths = [512, 1024, 2048, 8192]
    for power in (0.0, 1.0, 1.05, 2.0):
        assert exponent(lengths, [3e-4 * length**power for length in lengths]) == pytest.approx(power)
    # A constant beside the growth lowers it: (1 + 2) / (1 + 1) in one doubling.
    assert exponent([1, 2], [2.0, 3.0]) == pytest.approx(math.log2(1.5))


def test_a_table_has_its_numbers_on_the_right() -> None:
    from machine import as_markdown

    assert as_markdown(("name", "ms"), [["a", "5.0"], ["long", "12.5"]]).splitlines() == [
        "| name |   ms |",
        "| ---- | ---: |",
        "| a    |  5.0 |",
        "| long | 12.5 |",
    ]


def test_the_overhead_of_a_cell_is_what_is_neither_step_nor_test() -> None:
    from cells import overhead

    def cell(ended: list[float]) -> dict[str, object]:
        # Each: when it began, seconds by the clock, seconds of the processor. The first evaluation validates.
        return {
            "ended": ended,
            "_step": [[0, 0.5, 0.4], [0, 0.5, 0.4]],
            "evaluate": [[0, 7, 7], [0, 1.0, 0.9]],
        }

    cells = [cell([100.0, 50.0]), cell([103.0, 52.0]), cell([105.5, 54.2])]
    assert overhead(cells) == [pytest.approx([1.0, 0.3]), pytest.approx([0.5, 0.5])]


def test_rounds_take_turns_and_the_first_does_not_count() -> None:
    from scan import Candidate, time_in_rounds

    order: list[str] = []

    def layer(name: str) -> nn.Module:
        class Named(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                order.append(name)
                return super().forward(x)

        return Named(3, 3)

    fast, slow = layer("fast"), layer("slow")
    candidates = [
        Candidate(name="fast", module=fast, run=fast),
        Candidate(name="slow", module=slow, run=slow, once=True),
    ]
    time_in_rounds(candidates, torch.randn(2, 4, 3, requires_grad=True), 3)
    assert order == ["fast", "fast", "slow", "fast", "fast"]
    assert [len(candidate.seconds) for candidate in candidates] == [3, 1]


def test_ratios_are_how_many_times_as_fast_as_the_peer() -> None:
    from scan import Candidate, rows

    idle = nn.Identity()
    candidates = [
        Candidate(name="torch", module=idle, run=idle, seconds=[0.1, 0.2, 0.3]),
        Candidate(name="theirs", module=idle, run=idle, seconds=[0.5], peer=True),
    ]
    assert rows("mamba", 64, candidates) == [
        ["mamba", "64", "torch", "200.0", "150.0 to 250.0", "2.50 theirs"],
        ["mamba", "64", "theirs", "500.0", "500.0 to 500.0", ""],
    ]


def test_peers_are_the_same_layer() -> None:
    """As many parameters as ours, at the same width."""
    pytest.importorskip("mambapy")
    from peers import mambapy_layers, transformers_layers
    from scan import ours

    for kind, count in (("mamba", 2), ("mamba2", 2)):
        own = next(ours(kind, 64, 8)).module
        found = [*mambapy_layers(kind, 64), *transformers_layers(kind, 64)]
        assert len(found) == count
        for name, layer in found:
            assert layer(torch.zeros(1, 8, 64)).shape == (1, 8, 64), name
            sizes = [sum(p.numel() for p in module.parameters()) for module in (own, layer)]
            assert sizes[0] == sizes[1], name


def test_growth_prints_and_writes_both_tables(tmp_path: Path) -> None:
    page = tmp_path / "growth.md"
    words = ("--growth", "--layers", "s4", "decoder", "--lengths", "8", "16", "32", "--d-model", "16")
    ended = script(*words, "--contexts", "4", "40", "--repeats", "2", "--output", str(page))
    assert ended.returncode == 0, ended.stderr
    text = page.read_text()
    assert text.strip() == ended.stdout.strip()
    assert re.search(r", 1 threads, torch \S+, Python \S+, \d{4}-\d\d-\d\d, commit \w+\+?\.\n", text)
    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| (s4|decoder) ", line)]
    assert [len(row) for row in rows] == [6, 6, 4, 4]
    assert all(float(cell) > 0 for row in rows for cell in row[1:3])
    assert all(row[-1].strip().endswith("%") for row in rows[2:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--layers", "s4"), "--layers s4: options: mamba, mamba2"),
        (("--growth", "--layers", "mambo"), "--layers mambo: options: mamba, mamba2, gla"),
        (("--output", "/nowhere/at/all.md"), "there is no folder /nowhere/at"),
    ],
)
def test_mistakes_end_before_anything_is_timed(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import scan

    monkeypatch.setattr(sys, "argv", ["scan.py", *words])
    with pytest.raises(SystemExit) as ended:
        scan.parse()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_same_model_of_another_library_gives_the_same_logits_and_takes_turns(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    small = (
        "--d-model",
        "64",
        "--layers",
        "1",
        "--lengths",
        "16",
        "--tokens",
        "16",
        "--rounds",
        "2",
        "--vocab",
        "32",
    )
    done = subprocess.run(
        [
            sys.executable, str(FOLDER / "training.py"), "--threads", "1", "--json", str(numbers), *small,
            "--families", "gpt2", "encoder", "encoder_decoder", "moe",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(numbers.read_text())["training"]
    assert [row["family"] for row in rows] == ["gpt2", "encoder", "encoder_decoder", "moe"]
    for row in rows:
        assert row["seconds"] > 0
        assert 0 < row["matmul_share"] < 1
        for peer in row["peers"].values():
            assert peer["ratio"] == pytest.approx(peer["seconds"] / row["seconds"])
            assert peer["rounds"] == 2


def test_models_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import peer_models
    from peer_configs import Shape

    shape = Shape(d_model=64, layers=1, vocab_size=32, length=16)
    pair = peer_models.make_pair("gpt2", shape)
    with torch.no_grad():
        next(pair.theirs[0].module.parameters()).add_(1.0)
    with pytest.raises(ValueError, match="gpt2: our logits differ from those of transformers"):
        peer_models.check_equal("gpt2", pair.ours, pair.theirs[0], shape)


def test_the_loss_of_masked_tokens_is_the_same_with_and_without_the_other_logits() -> None:
    from peer_configs import Shape
    from peer_models import UNSCORED, make_pair
    from training import Trained, step_flops

    pair = make_pair("encoder", Shape(d_model=64, layers=1, vocab_size=32, length=16))
    ours, theirs = Trained(pair.ours), Trained(pair.theirs[0])
    tokens_BT, target_BT = (torch.randint(32, (3, 16)) for _ in range(2))
    for scored in (3 * 16, 5, 1):
        target_BT.view(-1)[scored:] = UNSCORED
        found, expected = (each.loss(tokens_BT, target_BT, bf16=False) for each in (ours, theirs))
        torch.testing.assert_close(found, expected)
    # A head of d_model 64, with BERT's transform before it: (64 x 64 + 64 x 32) products at every position.
    saved = step_flops(pair, 3, 16, 1.0) - step_flops(pair, 3, 16, 0.25)
    assert saved == 3 * 3 * 0.75 * 16 * 2 * (64 * 64 + 64 * 32)


def test_both_write_the_same_tokens_and_a_goal_counts_what_reaches_it(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    small = (
        "--d-model",
        "64",
        "--layers",
        "1",
        "--prompt",
        "4",
        "--tokens",
        "4",
        "--rounds",
        "2",
        "--vocab",
        "32",
    )
    done = subprocess.run(
        [
            sys.executable, str(FOLDER / "decoding.py"), "--threads", "1", "--json", str(numbers), *small,
            "--families", "decoder", "encoder_decoder", "--batches", "2", "--context", "32",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())
    assert [row["family"] for row in found["generation"]] == ["decoder", "encoder_decoder"]
    share = found["bandwidth"]["share"]
    assert share is None or 0 < share <= 1

    from measured_goals import Goal, decoding_goals

    goals = list(decoding_goals({"generation": found}))
    assert len(goals) == (3 if share is None else 4)
    half = Goal(what="x", limit=3.0, cells={"a": 2.0, "b": 4.0}, part="generation")
    assert (half.required, half.median, half.reached) == ("at least 3.00", 3.0, 1)
    overhead = Goal(what="x", limit=0.02, most=True, percent=True, cells={"a": 0.01}, part="harness")
    assert (overhead.required, overhead.say(overhead.median), overhead.reached) == ("at most 2.0%", "1.0%", 1)


def test_compiled_peers_count_for_the_fastest_and_our_compiled_blocks_do_not() -> None:
    from measured_goals import attention_goals, blocks_over_plain, compiled_goals, fastest_peer

    peers = {
        "transformers": {"ratio": 1.3, "mixed": True},
        "transformers, compiled": {"ratio": 1.1, "mixed": True},
        "transformers, grouped_mm": {"ratio": 0.7, "mixed": False},
        "ours, compiled blocks": {"ratio": 0.8, "mixed": True},
    }
    row = {"family": "moe", "d_model": 64, "length": 32, "vocab_size": 9, "peers": peers}
    assert fastest_peer({**row, "precision": "bf16"}) == 1.1
    assert fastest_peer({**row, "precision": "fp32"}) == 0.7
    assert blocks_over_plain(row) == pytest.approx(1.25)
    goals = list(compiled_goals({"compiled": {"training": [{**row, "precision": "bf16"}]}}))
    assert [(goal.limit, goal.reached) for goal in goals] == [(1.2, 0), (1.0, 1)]
    measured = {"mask": "causal", "length": 256, "precision": "bf16", "training": 1.6}
    rows = [{**measured, "takes_training": takes} for takes in (True, False)]
    assert [goal.cells for goal in attention_goals({"attention": {"attention": rows}})] == [
        {"causal, T 256": 1.6}
    ]


def test_attention_is_measured_beside_pytorch_and_says_where_a_model_takes_it(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    done = subprocess.run(
        [
            sys.executable, str(FOLDER / "attention.py"), "--threads", "1", "--json", str(numbers),
            "--lengths", "16", "128", "--tokens", "256", "--heads", "2", "--head-dim", "16", "--turns", "1",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(numbers.read_text())["attention"]
    assert len(rows) == 7 * 2 * 2
    for row in rows:
        assert row["training"] > 0 < row["forward"]
        # What the kernel keeps: the output and a number for each query, and of a mask a byte for each score.
        size = 4 if row["precision"] == "fp32" else 2
        heads, tokens = row["heads"], row["batch_size"] * row["length"]
        least = tokens * heads * (row["head_dim"] * size + 4)
        assert least <= row["kept_bytes"]["ours"] <= least + tokens * row["length"] + 4096
    by_case = {(row["mask"], row["precision"], row["length"]): row for row in rows}
    assert by_case["causal", "fp32", 128]["takes_training"]
    assert not by_case["causal", "fp32", 16]["takes_training"]
    assert not by_case["none", "fp32", 128]["takes_training"]


def test_losses_are_held_against_those_of_before() -> None:
    from losses import FAMILIES, LIMIT, difference, train

    before = json.loads((FOLDER / "results" / "losses_before.json").read_text())
    assert tuple(before) == FAMILIES
    assert {len(losses) for losses in before.values()} == {50}
    assert difference([3.0, 2.5], [3.0, 2.25]) == 0.25
    with pytest.raises(ValueError, match="shorter"):
        difference([3.0, 2.0], [3.0])
    assert difference(train("decoder", 2), train("decoder", 2)) <= LIMIT
