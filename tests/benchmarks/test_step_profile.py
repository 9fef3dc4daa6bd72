"""``benchmarks/step_profile.py``: every microsecond of a step is counted once, and under its kind."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from archbench.architectures.kernels.cpu.transformer_ops import cpp_attention


def event(name: str, own: float, within: Any = None, number: int = -1) -> SimpleNamespace:
    return SimpleNamespace(name=name, self_cpu_time_total=own, cpu_parent=within, sequence_nr=number)


def test_an_operator_belongs_to_what_it_was_done_for() -> None:
    from operator_kinds import NOTHING, REST, spent

    forward, backward, optimizer = (event(name, 1.0) for name in ("forward", "backward", "optimizer"))
    linear = event("aten::linear", 2.0, forward, 7)
    attention = event("aten::scaled_dot_product_attention", 1.0, forward, 8)
    softmax = event("aten::_softmax", 4.0, attention, 9)
    node = event("autograd::engine::evaluate_function: SoftmaxBackward0", 1.0, backward, 9)
    view = event("autograd::engine::evaluate_function: TBackward0", 3.0, backward, 7)
    events = [
        *(forward, backward, optimizer, linear, attention, softmax, node, view),
        event("aten::view", 2.0, linear),
        event("aten::copy_", 5.0, linear),
        event("aten::mul", 6.0, node),
        event("aten::softmax", 3.0, forward),
        event("aten::detach", 0.5, event("torch::autograd::AccumulateGrad", 0.5, backward)),
        event("aten::mul", 7.0, optimizer),
        event("aten::mm", 1000.0, event("elsewhere", 0.0)),
    ]
    found = spent(events)
    assert found.kinds == {
        NOTHING: {"forward": 1.0, "backward": 1.0},
        "optimizer": {"optimizer": 8.0},
        "matrix products": {"forward": 4.0, "backward": 3.0},
        "attention": {"forward": 5.0, "backward": 7.0},
        "copies": {"forward": 5.0},
        "activations and gates": {"forward": 3.0},
        REST: {"backward": 0.5},
    }
    assert found.total == 37.5
    assert found.share("attention") == pytest.approx(12 / 37.5)
    assert found.share("attention", "backward") == pytest.approx(7 / 37.5)
    assert found.longest(2) == [
        ("aten::mul", "optimizer", 7 / 37.5, 1),
        ("aten::mul", "attention", 6 / 37.5, 1),
    ]


def wait(x: Tensor) -> None:
    time.sleep(0.02)


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        (lambda x: x.sort(dim=0), "choice and order of rows"),
        (lambda x: F.scaled_dot_product_attention(*[x.view(8, 500, -1)] * 3), "attention"),
        (lambda x: cpp_attention(*[x.view(1, 80, 500, -1)] * 3, scale=1.0), "attention"),
        (lambda x: x.t().contiguous(), "copies"),
        (lambda x: F.layer_norm(x, (64,)), "norms"),
        (wait, "no operator (Python)"),
    ],
)
def test_what_is_slow_is_found_under_its_kind(planted: Callable[[Tensor], None], kind: str) -> None:
    from operator_kinds import spent

    weight, rows = torch.randn(64, 64, requires_grad=True), torch.randn(40_000, 64)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        begin = time.perf_counter()
        with record_function("forward"):
            loss = (torch.randn(4, 64) @ weight).square().sum()
            for _ in range(3):
                planted(rows)
        with record_function("backward"):
            loss.backward()
        seconds = time.perf_counter() - begin
    found = spent(profiled.events())
    assert max(found.kinds, key=found.share) == kind
    assert found.share("matrix products", "backward") > 0
    assert sum(found.share(each) for each in found.kinds) == pytest.approx(1)
    assert found.total / 1e6 <= seconds


def test_the_shares_of_every_family_are_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import step_profile

    page, numbers, figure = (tmp_path / name for name in ("page.md", "numbers.json", "figure.svg"))
    families = ["moe", "s4", "hybrid"]
    small = ("--d-model", "64", "--layers", "2", "--length", "16", "--tokens", "32", "--vocab", "32")
    files = ("--output", str(page), "--json", str(numbers), "--figure", str(figure))
    words = ("--families", *families, *small, *files, "--steps", "2", "--threads", "1")
    monkeypatch.setattr(sys, "argv", ["step_profile.py", *words])
    threads = torch.get_num_threads()
    try:
        step_profile.main()
    finally:
        torch.set_num_threads(threads)
    found = json.loads(numbers.read_text())["profile"]
    assert list(found) == families
    for family, measured in found.items():
        assert sum(measured["kinds"].values()) == pytest.approx(1), family
        assert sum(measured["phases"].values()) == pytest.approx(1), family
        assert measured["kinds"]["matrix products"] > measured["backward"]["matrix products"] > 0
        assert measured["kinds"]["optimizer"] > 0
        assert all(each["calls"] > 0 for each in measured["operators"])
    assert found["moe"]["kinds"]["scans and convolutions"] == 0
    for family, kind in (
        ("moe", "choice and order of rows"),
        ("hybrid", "attention"),
        ("s4", "scans and convolutions"),
        ("hybrid", "scans and convolutions"),
    ):
        assert found[family]["kinds"][kind] > 0
    lines = page.read_text().splitlines()
    (row,) = (line for line in lines if line.startswith("| matrix products "))
    told = [float(cell.strip().rstrip("%")) for cell in row.split("|")[2:-1]]
    expected = [100 * measured["kinds"]["matrix products"] for measured in found.values()]
    assert told == pytest.approx(expected, abs=0.05001)
    assert sum(line.startswith("| s4 ") for line in lines) == 5
    drawn = figure.read_text()
    assert all(name in drawn for name in (*families, "matrix products"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--families", "lstm"), "invalid choice: 'lstm'"),
        (("--figure", "/nowhere/at/all.svg"), "there is no folder /nowhere/at"),
        (("--steps", "0"), "--steps 0: at least 1"),
    ],
)
def test_wrong_words_end_before_anything_is_measured(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import step_profile

    monkeypatch.setattr(sys, "argv", ["step_profile.py", *words])
    with pytest.raises(SystemExit) as ended:
        step_profile.parse()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
