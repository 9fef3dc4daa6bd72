"""A new backbone is one Python file outside the checkout, with a YAML or without."""

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from archbench.analysis.compare import main as compare
from archbench.experiments.config.hydra_overrides import path_words
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

PYTHON = '''
"""Each position sees the mean of all up to itself."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Capabilities, Flops, linear_flops
from archbench.architectures.layers.block import FeedForward, Mixer
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.feedforward import DenseFeedForward
from archbench.architectures.backbones.stack import Stack, StackConfig


@dataclass(frozen=True, kw_only=True)
class ToyConfig(StackConfig):
    """A stack of running means."""

    d_ff: int | None = None
    """Hidden width of the feed-forward; null for twice the width."""


class RunningMean(Mixer):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.out((x_BTD.cumsum(1) / (context.positions_BT[..., None] + 1)).to(x_BTD.dtype))

    def flops(self, length: int) -> Flops:
        return Flops(linear=linear_flops(self, length))

    def start(self, batch_size: int, max_length: int) -> dict[str, Tensor]:
        return {"sum": self.out.weight.new_zeros(batch_size, self.out.in_features)}

    def step(self, x_BTD: Tensor, state: dict[str, Tensor], context: Context) -> Tensor:
        sum_BTD = state["sum"][:, None] + x_BTD.cumsum(1)
        state["sum"] = sum_BTD[:, -1]
        return self.out(sum_BTD / (context.positions_BT[..., None] + 1))

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return self.out.in_features * bytes_per_element


class Toy(Stack):
    Config = ToyConfig
    capabilities = Capabilities(causal=True, decodes=True)

    def make_mixer(self, layer: int) -> Mixer:
        return RunningMean(self.config.width)

    def make_feedforward(self, layer: int) -> FeedForward:
        return DenseFeedForward(self.config.width, self.config.d_ff or 2 * self.config.width)
'''
YAML = """
_target_: my_toy.Toy
d_model: null
num_layers: ${scale.depth}
d_ff: null
norm_eps: 1.0e-5
tie_embeddings: false
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A folder with the two files."""
    (tmp_path / "my_toy.py").write_text(PYTHON)
    (tmp_path / "conf" / "backbone").mkdir(parents=True)
    (tmp_path / "conf" / "backbone" / "toy.yaml").write_text(YAML)
    return tmp_path


@pytest.fixture
def module(toy: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(toy)
    monkeypatch.syspath_prepend(commands.ROOT / "tests" / "architectures")
    return importlib.import_module("my_toy")


def words(toy: Path) -> tuple[str, ...]:
    return ("backbone=toy", *commands.TINY, "task.sequence_length=64", f"runs={toy}/runs")


def test_it_trains_on_every_task_through_the_harness(toy: Path) -> None:
    choice = ("--config-dir", str(toy / "conf"), "-m", *words(toy), "task=text,recall")
    ended = commands.run("train", *choice, PYTHONPATH=str(toy))
    assert ended.returncode == 0, ended.stderr
    results = {found["task"]: found for found in map(json.loads, results_in(toy / "runs"))}
    assert set(results) == {"text", "recall"}
    assert results["text"]["metrics"][0]["name"] == "bits_per_byte"
    assert results["text"]["metrics"][0]["likelihood"] == "exact"
    assert results["recall"]["metrics"][0]["name"] == "answer_accuracy"
    for found in results.values():
        assert found["status"] == "complete"
        assert found["backbone"] == "toy"
        assert abs(found["matched"]["residual"]) <= 0.01
        assert abs(found["parameters"]["body"] / 20_000 - 1) <= 0.01
        assert found["state_bytes_2k"] == 2 * found["widths"]["d_model"] * 4
        assert found["flops_per_token"] > 0
    again = commands.run("train", *choice, PYTHONPATH=str(toy))
    assert again.stdout.count("already complete") == 2


def results_in(runs: Path) -> list[str]:
    return [path.read_text() for path in runs.rglob("result.json")]


def test_it_is_found_on_the_search_path_too(toy: Path) -> None:
    ended = commands.run("plan", f"hydra.searchpath=[file://{toy}/conf]", *words(toy), PYTHONPATH=str(toy))
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^text, nano.*^toy +", ended.stdout, re.DOTALL | re.MULTILINE)
    assert "0 of 1 run is done" in ended.stdout


def test_its_mistakes_are_said_as_others(toy: Path) -> None:
    choice = ("--config-dir", str(toy / "conf"), *words(toy))
    ended = commands.run("train", *choice, "backbone.d_fff=3", PYTHONPATH=str(toy))
    assert ended.returncode == 2
    assert "backbone.d_fff" in ended.stderr
    ended = commands.run("train", *choice, "objective=masked_lm", PYTHONPATH=str(toy))
    assert ended.returncode == 2
    assert "backbone=toy is causal" in ended.stderr
    ended = commands.run("train", *choice)  # its folder is not on PYTHONPATH
    assert ended.returncode == 2
    assert "no module 'my_toy'; is it on PYTHONPATH?" in ended.stderr


def test_one_that_reads_later_tokens_is_not_trained(toy: Path) -> None:
    leak = PYTHON.replace("self.out((x_BTD.cumsum(1) /", "self.out((x_BTD.sum(1, keepdim=True) /")
    (toy / "my_toy.py").write_text(leak)
    choice = ("--config-dir", str(toy / "conf"), *words(toy), "task=recall", *commands.RECALL)
    ended = commands.run("train", *choice, PYTHONPATH=str(toy))
    assert ended.returncode == 2
    assert "Toy: the logits at position 0 change with later tokens" in ended.stderr


def test_an_error_in_its_code_has_file_and_line(toy: Path) -> None:
    source = PYTHON.replace("        return RunningMean(self.config.width)", "        first, second = ()")
    line = 1 + source[: source.index("first, second")].count("\n")
    (toy / "my_toy.py").write_text(source)
    ended = commands.run("plan", "--config-dir", str(toy / "conf"), *words(toy), PYTHONPATH=str(toy))
    assert ended.returncode == 2
    assert f"not enough values to unpack (expected 2, got 0) ({toy}/my_toy.py, line {line})" in ended.stderr


def test_it_conforms(module: ModuleType) -> None:
    checks, costs = importlib.import_module("conformance"), importlib.import_module("costs")
    config = module.ToyConfig(d_model=16)

    def build() -> torch.nn.Module:
        return module.Toy(config, vocab_size=29, max_length=80)

    torch.manual_seed(0)
    lively = checks.enliven(build().double())
    checks.check_no_leak(lively, 21)
    checks.check_padding(lively, 19)
    checks.check_batch_invariance(lively, 17)
    checks.check_decoding(lively, 37)
    checks.check_gradients(build(), 33, autocast=True)
    checks.check_initialisation(build)
    costs.check_parameters(build(), tied=False)
    costs.check_flops(build(), 32)
    costs.check_state_bytes(build(), 33)


@pytest.mark.full
def test_it_is_trained_from_its_file_without_a_yaml(toy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Beside another backbone, in parallel processes, whose results are compared and not computed again."""
    choice = ("-m", f"backbone=decoder,{toy}/my_toy.py:Toy", *commands.TINY, *commands.RECALL)
    choice = (*choice, "hydra/launcher=parallel", "study.name=mine", f"runs={toy}/runs")
    ended = commands.run("train", *choice, PYTHONPATH=str(toy))
    assert ended.returncode == 0, ended.stderr
    names = {(found["backbone"], found["status"]) for found in map(json.loads, results_in(toy / "runs"))}
    assert names == {("decoder", "complete"), ("my_toy.Toy", "complete")}
    again = commands.run("train", *choice, PYTHONPATH=str(toy))
    assert again.stdout.count("already complete") == 2
    assert "has changed since" not in again.stdout
    (toy / "my_toy.py").write_text((toy / "my_toy.py").read_text() + "\nEDITED = True\n")
    again = commands.run("train", *choice, PYTHONPATH=str(toy))
    assert again.stdout.count("warning: my_toy has changed since") == 1
    assert compare(["study=mine", f"runs={toy}/runs"]) == 0
    assert "my_toy.Toy" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("my_tpy.py:Toy", "there is no file {toy}/my_tpy.py; did you mean 'my_toy.py'?"),
        ("my_toy.py:RuningMean", "no class 'RuningMean' in {toy}/my_toy.py; did you mean 'RunningMean'?"),
        ("my_toy.py", "add the class, {toy}/my_toy.py:CLASS; options: ToyConfig, RunningMean, Toy"),
        ("my_toy:Toy", "is no Python file: write FILE.py:Toy"),
        ("my-toy.py:Toy", "rename my-toy.py: Python imports a name of letters, digits and underscores"),
        ("broken.py:Toy", "line 1: "),
        ("numpy.py:Toy", "set PYTHONPATH={toy}, or rename the file"),
    ],
)
def test_a_mistake_in_a_file_or_class_is_explained(
    word: str, message: str, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(toy)
    (toy / "broken.py").write_text("class Toy(:")
    (toy / "numpy.py").write_text("class Toy: ...")
    (toy / "my-toy.py").write_text("class Toy: ...")
    with pytest.raises(ConfigError) as raised:
        path_words([f"backbone=decoder,{toy}/{word}"])
    assert str(raised.value).startswith(f"backbone={toy}/{word}: ")
    assert message.format(toy=toy) in str(raised.value)


def test_a_file_that_imports_what_is_not_installed_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacking.py").write_text("import nowhere_installed\n\n\nclass Toy: ...\n")
    with pytest.raises(ConfigError, match="lacking imports nowhere_installed, which is not installed"):
        commands.settings("backbone=lacking.Toy")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("math.cosine", "AttributeError: module 'math' has no attribute 'cosine'"),
        ("cosine", "NameError: name 'cosine' is not defined"),
        ("from math import cosine", "ImportError: cannot import name 'cosine' from 'math'"),
    ],
)
def test_an_error_in_the_import_of_its_file_has_file_and_line(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_import", raising=False)
    (tmp_path / "broken_import.py").write_text(f"import math\n\n{line}\n\n\nclass Toy: ...\n")
    with pytest.raises(ConfigError) as raised:
        commands.settings("backbone=broken_import.Toy")
    assert str(raised.value).startswith(
        f"backbone._target_=broken_import.Toy: broken_import cannot be imported: {message}"
    )
    assert str(raised.value).endswith(f" ({tmp_path}/broken_import.py, line 3)")


def test_a_module_whose_name_begins_like_a_missing_one_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacking_more.py").write_text("import lacking_mo\n")
    with pytest.raises(ConfigError, match="lacking_more imports lacking_mo, which is not installed"):
        commands.settings("backbone=lacking_more.Toy")


def test_a_file_and_a_dotted_path_are_one_backbone(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(toy)
    monkeypatch.delitem(sys.modules, "my_toy", raising=False)  # that of another test
    monkeypatch.chdir(toy)
    assert path_words(["backbone=./my_toy.py:Toy"]) == ["backbone=my_toy.Toy"]
    backbone = commands.compose("backbone=my_toy.Toy", "task=recall", "scale.depth=3").backbone
    assert (backbone._target_, backbone.num_layers, backbone.d_ff) == ("my_toy.Toy", 3, None)
