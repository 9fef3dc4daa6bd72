"""Further tests (trainer.extra_evaluations): the trained model on the task with other settings."""

import itertools
import json
from pathlib import Path

import pytest

from archbench.experiments.evaluate import evaluate
from archbench.experiments.run.plan import plan
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

PARITY = ("task=parity", "task.sequence_length=16", *commands.TINY)
LONGER = "trainer.extra_evaluations=['sequence_length=32','sequence_length=80']"


@pytest.mark.parametrize("backbone", ["mamba", "gpt2"])
def test_each_test_is_what_evaluate_finds(backbone: str, tmp_path: Path) -> None:
    """Learned positions (of gpt2) must reach to the longest test."""
    words = [f"backbone={backbone}", *PARITY, LONGER, f"runs={tmp_path}"]
    if backbone == "gpt2":
        small = (
            "d_model=16",
            "num_layers=1",
            "attention.num_heads=2",
            "max_positions=null",
            "vocab_size=null",
        )
        words += ["scale=given", "scale.targets.non_embedding=null", *(f"backbone.{word}" for word in small)]
    folder = commands.train(*words)
    metrics = commands.result(folder)["metrics"]
    measured = {(m["name"], m["split"]): m["value"] for m in metrics}
    splits = {"test": 16, "sequence_length=32": 32, "sequence_length=80": 80}
    assert set(measured) == set(itertools.product(["answer_accuracy", "bits_per_answer"], splits))
    for split, length in splits.items():
        output = folder / "found.json"
        asked = ("task=parity", f"task.sequence_length={length}", "examples=8", f"output={output}")
        evaluate(commands.compose(f"run={folder}", "device=cpu", *asked, root="evaluate"))
        for found in json.loads(output.read_text())["metrics"]:
            assert measured[found["name"], split] == pytest.approx(found["value"], abs=1e-9)


def test_they_are_part_of_what_a_run_is() -> None:
    words = ("backbone=decoder", *PARITY)
    assert len({commands.settings(*words, *more).digest for more in ((), (LONGER,))}) == 2
    assert plan(commands.settings(*words)).sizes.max_length == 16
    planned = plan(commands.settings(*words, LONGER))
    assert planned.sizes.max_length == 80
    assert planned.cost == plan(commands.settings(*words)).cost


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "'sequence_lenght=32'",
            "trainer.extra_evaluations: sequence_lenght=32: task.sequence_lenght: .*did you mean",
        ),
        (
            "'sequence_length=31'",
            "trainer.extra_evaluations: sequence_length=31: task: sequence_length=31 must be even",
        ),
        ("'longer'", "trainer.extra_evaluations: 'longer' must be settings of the task"),
        ("''", "trainer.extra_evaluations: '' must be settings of the task"),
    ],
)
def test_mistakes_are_refused_before_training(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        commands.settings("backbone=decoder", *PARITY, f"trainer.extra_evaluations=[{words}]")


def test_another_vocabulary_is_refused() -> None:
    words = ("backbone=decoder", *PARITY, "trainer.extra_evaluations=['sequence_length=32 group=Z3']")
    with pytest.raises(ConfigError, match=r"group=Z3: it has 136 tokens and the task trained on 135"):
        plan(commands.settings(*words))
