"""A group that was typed wins, or is refused with the key in the way."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from archbench.experiments.config.ineffective_overrides import check_words
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands


def check(*words: str) -> None:
    cfg = commands.compose(*words)
    check_words(cfg, HydraConfig.get(), words)


@pytest.mark.parametrize(
    ("study", "typed", "key"),
    [
        ("compare", "budget=smoke", "budget.tokens is 500000, not 4000"),
        ("compare", "scale=micro", "scale.targets.flops is 900000, not 20000000"),
        ("experts", "optimizer=adamw", "optimizer.learning_rate is 0.01, not 0.003"),
    ],
)
def test_a_study_that_overrides_what_was_typed_is_in_the_way(study: str, typed: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{typed}: study={study} is in the way.*{key}"):
        check(f"study={study}", typed)


def test_a_schedule_that_a_study_overrides_is_in_the_way_beside_an_optimizer_too(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    text = "# @package _global_\nstudy: {name: mine}\noptimizer: {schedule: cosine}\n"
    (tmp_path / "study" / "mine.yaml").write_text(text)
    words = [f"hydra.searchpath=[{tmp_path}]", "study=mine", "backbone=mamba", "schedule=wsd"]
    with pytest.raises(ConfigError, match=r"schedule=wsd: .*optimizer\.schedule is cosine, not wsd"):
        check(*words, "optimizer=muon")


STUDIES = {
    "none": "study: {name: mine}",
    "unlaunched": "hydra: {sweeper: {params: {backbone: 'mamba,s4'}}}",
    "launched": "hydra: {mode: MULTIRUN, sweeper: {params: {backbone: 'mamba,s4'}}}",
    "chosen": "defaults: [{override /backbone: mamba}]",
    "extended": "defaults: [chosen, _self_]",
}


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("study=none", "study=none: it has no runs"),
        ("study=none backbone=mamba", None),
        ("study=unlaunched", r"its sweep \(backbone\) is not run: add mode: MULTIRUN"),
        ("study=launched", None),
        ("study=chosen", None),
        ("study=extended", None),
        ("study=recipe/125m", None),
    ],
)
def test_a_study_without_runs_does_not_train_the_default_backbone(
    tmp_path: Path, words: str, refused: str | None
) -> None:
    (tmp_path / "study").mkdir()
    for name, text in STUDIES.items():
        (tmp_path / "study" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        check(f"hydra.searchpath=[{tmp_path}]", *words.split())


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("~optimizer", "optimizer=NAME: adamw, gpt3, muon, nadam, sgd"),
        ("~scale", "scale=NAME: 125m, "),
        ("~device=auto", "device=NAME: a100, auto, "),
        ("~optimizer.learning_rate", r"optimizer\.learning_rate=VALUE"),
        ("~task.sequence_length", r"task\.sequence_length=VALUE"),
        ("~seed", "seed=VALUE"),
    ],
)
def test_f47_nothing_is_deleted_in_favour_of_a_silent_default(word: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=f"{word.partition('=')[0]}: cannot be deleted.*{remedy}"):
        check(word)


def test_f47_a_target_of_another_axis_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scale\.axis=flops is in the way.*add scale\.axis=total"):
        check("scale.targets.total=5000")
    check("scale.targets.total=5000", "scale.axis=total")
    check("scale.targets.total=5000", "scale.targets.flops=900000")  # a sweep over both axes
    check("scale.targets.total=5000", "budget=chinchilla")  # whose tokens are counted from it
    check("study=experts", "scale.targets.total=5000")


@pytest.mark.parametrize(
    "words",
    [
        ["study=compare", "budget=smoke", "budget.tokens=4000", "budget.batch_size=4"],
        ["study=compare", "scale=micro", "scale.targets={flops: 5000000}"],
        ["study=compare", "backbone=mamba", "task=recall", "device=cpu", "tracking=off"],
        ["budget=smoke", "scale=micro", "objective=causal_lm"],
        ["optimizer=muon", "schedule=wsd", "optimizer.learning_rate=0.01"],
        ["study=ladder"],
    ],
)
def test_what_wins_is_not_refused(words: list[str]) -> None:
    check(*words)
