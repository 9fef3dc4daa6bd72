"""The text that a run stores: the same prompt for every model, and no effect on the run."""

import json
from pathlib import Path

import pytest

from archbench.experiments.run import run as module
from archbench.experiments.run.sample import PROMPT_TOKENS
from archbench.experiments.tracking.run_files import RunResult, read_result
from tests.experiments import commands

WORDS = (*commands.TINY, *commands.SHORT_TEXT, "budget.batch_size=4", "budget.tokens=2560")


def trained(folder: Path, backbone: str, *words: str) -> RunResult:
    path = commands.train(*WORDS, f"backbone={backbone}", f"runs={folder}", *words)
    result = read_result(path / "result.json", "")
    assert result is not None
    return result


def test_models_continue_the_same_prompt(tmp_path: Path) -> None:
    results = {name: trained(tmp_path, name) for name in ("decoder", "mamba", "masked_diffusion", "encoder")}
    samples = [result.sample for result in results.values()]
    assert all(samples)
    assert len({sample.prompt for sample in samples if sample}) == 1
    for sample in filter(None, samples):
        assert 1 <= len(sample.prompt.encode()) <= PROMPT_TOKENS
        assert sample.text
    assert len({sample.text for sample in filter(None, samples)}) > 1


def test_a_run_on_another_task_has_none(tmp_path: Path) -> None:
    assert trained(tmp_path, "decoder", *commands.RECALL).sample is None


def test_a_sample_does_not_change_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_text = trained(tmp_path / "a", "decoder")
    monkeypatch.setattr(module, "sample", lambda trainer: None)
    without = trained(tmp_path / "b", "decoder")
    assert with_text.sample is not None
    assert without.sample is None
    assert json.dumps([str(m) for m in with_text.metrics]) == json.dumps([str(m) for m in without.metrics])
    assert with_text.training is not None
    assert without.training is not None
    assert with_text.training.flops == without.training.flops


def test_a_failure_to_generate_does_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise RuntimeError("out of memory\nlong")

    monkeypatch.setattr("archbench.experiments.objectives.language_modelling.causal_lm.CausalLM.sample", fail)
    result = trained(tmp_path, "decoder")
    assert result.status == "complete"
    assert result.sample is None
