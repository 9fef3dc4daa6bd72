"""The check of models with the user's code before training."""

import importlib
import sys
from pathlib import Path

import pytest

from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import check_user_code
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands
from tests.experiments.test_toy_backbone import PYTHON

HONEST = "self.out((x_BTD.cumsum(1) / (context.positions_BT[..., None] + 1)).to(x_BTD.dtype))"
GATE = "        self.gate = nn.Parameter(torch.zeros(d_model))\n"
OUT = "        self.out = nn.Linear(d_model, d_model, bias=False)\n"


def check(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "my_toy.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_toy", raising=False)  # that of another test
    importlib.invalidate_caches()
    words = ("backbone=my_toy.Toy", *commands.RECALL, *commands.TINY)
    settings = commands.settings(*words)
    check_user_code(settings, plan(settings))


def test_a_causal_model_may_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, PYTHON, monkeypatch)


@pytest.mark.parametrize("leak", ["x_BTD.mean(1, keepdim=True)", "x_BTD.mean(0)"])
def test_a_leak_is_found_before_training_though_its_weights_are_zero(
    leak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HONEST in PYTHON
    source = PYTHON.replace(OUT, OUT + GATE).replace(HONEST, f"{HONEST} + self.gate * {leak}")
    with pytest.raises(ConfigError, match="Toy: the logits at position 0 change with later tokens or with"):
        check(tmp_path, source, monkeypatch)
