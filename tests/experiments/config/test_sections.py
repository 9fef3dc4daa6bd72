"""Sections are checked when the configuration is read: targets by axis, budgets, and settings of a study."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.config.sections import read_sections, read_tree, with_target, with_tokens
from archbench.experiments.config.study import StudyConfig
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

TARGETS = {"flops": 900_000, "non_embedding": 100_000, "total": None}
STORED = {"axis": "non_embedding", "target": 100_000, "depth": 2}


def section(**changes: Any) -> dict[str, Any]:
    return {"axis": "flops", "targets": TARGETS, "depth": 2} | changes


@pytest.mark.parametrize(
    ("changes", "axis", "target"),
    [
        ({}, "flops", 900_000),
        ({"axis": "non_embedding"}, "non_embedding", 100_000),
        ({"targets": {"flops": 3e6}}, "flops", 3_000_000),
        ({"targets": None}, "flops", None),
        ({"targets": {}}, "flops", None),
        ({"targets": {"flops": None, "total": None}}, "flops", None),
    ],
)
def test_the_target_is_that_of_the_axis(changes: dict[str, Any], axis: str, target: int | None) -> None:
    assert with_target(section(**changes)) == {"axis": axis, "target": target, "depth": 2}


def test_a_stored_section_comes_back_as_it_is() -> None:
    assert with_target(STORED) == STORED
    assert with_target(with_target(section())) == with_target(section())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"axis": "total"},
            r"scale\.axis=total: .* only for flops, non_embedding: choose one of these, or give ",
        ),
        ({"target": 5}, r"scale\.target=5: a target belongs to its axis: write scale\.targets\.flops=5"),
        ({"targets": {"flop": 5}}, r"scale\.targets\.flop: there is no such axis; did you mean 'flops'"),
        ({"targets": {"flops": -5}}, r"scale\.targets\.flops=-5 must be a positive whole number"),
        ({"targets": {"flops": "many"}}, r"scale\.targets\.flops=many must be a positive whole number"),
        ({"targets": 7}, r"scale\.targets=7 must name a size for each axis"),
    ],
)
def test_what_belongs_to_no_axis_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_target(section(**changes))


@pytest.mark.parametrize("scale", ["nano", "micro", "small"])
def test_every_scale_has_a_target_on_each_axis_and_holds_flops_equal(scale: str) -> None:
    words = (f"scale={scale}", "task=recall")
    assert commands.settings(*words).scale.axis == "flops"
    found = {
        axis: commands.settings(*words, f"scale.axis={axis}").scale.target
        for axis in ("flops", "non_embedding", "active_non_embedding", "total")
    }
    assert None not in found.values()
    assert found["flops"] > 5 * found["non_embedding"]  # type: ignore[operator]
    assert found["total"] >= found["non_embedding"] == found["active_non_embedding"]  # type: ignore[operator]


def test_the_record_of_a_run_holds_the_axis_and_its_target_only() -> None:
    chosen = commands.settings("task=recall", "scale.axis=non_embedding")
    assert chosen.resolved["scale"] == {
        "axis": "non_embedding", "target": 100_000, "depth": 2, "mixer_depth": 2
    }  # fmt: skip


SCALE = {"targets": {"total": 1_000}}
TASK = {"sequence_length": 64}


def test_a_budget_in_tokens_of_a_parameter_is_one_in_tokens() -> None:
    budget = {"tokens": None, "tokens_per_parameter": 20, "batch_size": 4, "batch_tokens": None}
    assert with_tokens(budget, SCALE, TASK) == {"tokens": 20_000, "batch_size": 4}
    assert with_tokens(with_tokens(budget, SCALE, TASK), {}, {}) == {"tokens": 20_000, "batch_size": 4}


@pytest.mark.parametrize(("size", "sequences"), [(512, 8), (500, 8), (540, 8), (550, 9), (1, 1)])
def test_a_batch_in_tokens_is_whole_sequences(size: int, sequences: int) -> None:
    budget = {"tokens": 5, "batch_size": None, "batch_tokens": size}
    assert with_tokens(budget, SCALE, TASK) == {"tokens": 5, "batch_size": sequences}


@pytest.mark.parametrize(
    ("budget", "scale", "task", "message"),
    [
        ({"tokens": 5, "tokens_per_parameter": 20}, SCALE, TASK, "the same quantity twice"),
        ({"batch_size": 5, "batch_tokens": 64}, SCALE, TASK, r"or budget\.batch_size=null"),
        (
            {"tokens_per_parameter": 20},
            {"targets": None},
            TASK,
            r"give scale\.targets\.total, or budget\.tokens",
        ),
        ({"tokens_per_parameter": "many"}, SCALE, TASK, "must be a positive number"),
        ({"tokens_per_parameter": -1}, SCALE, TASK, "must be a positive number"),
        ({"batch_tokens": 64}, SCALE, {}, r"no task\.sequence_length to divide it by"),
    ],
)
def test_a_budget_that_follows_from_nothing_is_refused(
    budget: dict[str, Any], scale: dict[str, Any], task: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        with_tokens(budget, scale, task)


def test_models_of_a_scale_train_on_equally_many_tokens_and_say_it_plainly() -> None:
    words = ("budget=chinchilla", "scale=125m", "device=cpu")
    found = [commands.settings(f"backbone={name}", *words) for name in ("decoder", "mamba")]
    assert {settings.budget.tokens for settings in found} == {20 * 85_500_000}
    assert {settings.budget.batch_size for settings in found} == {524_288 // 256}
    assert set(found[0].resolved["budget"]) == {"tokens", "batch_size", "micro_batch_size"}
    plain = ("budget.tokens_per_parameter=null", "budget.batch_tokens=null", "budget.batch_size=2048")
    same = commands.settings("backbone=decoder", *words, "budget.tokens=1_710_000_000", *plain)
    assert same.digest == found[0].digest


def test_a_learning_rate_of_a_table_needs_a_scale_of_the_table() -> None:
    with pytest.raises(ConfigError, match=r"scale\.published\.learning_rate"):
        commands.settings("optimizer=gpt3", "scale=nano")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("study.solved=7", "study.solved=7 must be an accuracy above 0, up to 1"),
        ("study.solved=0", "study.solved=0 must be an accuracy"),
        ("study.solved=most", "study.solved=most must be a number"),
        ("study.protocol=2.0", "study.protocol=2.0 must be 1.0, or null"),
        ("study.margin=-0.1", "study.margin=-0.1 must be a difference of scores, 0 or more"),
        ("study.margin=1e400", "study.margin=inf must be a finite number"),
        ("study.shared_seeds=7", "study.shared_seeds=7 must be true or false"),
        ("study.fixed_grid=7", "study.fixed_grid=7 must be true or false"),
        ("study.fixed_grid=null", "study.fixed_grid=null must be true or false"),
        ("study.published=null", "study.published=null: it must have a value"),
        ("study.published=[[1]]", r"study.published=\[\[1\]\]: \[1\] must be a single value"),
        ("study.published=text", r"study.published=text must be a list: write study.published=\[text\]"),
        ("study.baseline=[decoder]", "study.baseline: Cannot convert"),
        ("study.tuned={a: 1}", "study.tuned: "),
        ("study.values=3", "study.values: "),
        ("study.workload={targt: 1}", "study.workload.targt: .*did you mean 'target'"),
        ("study.workload={target: high}", "study.workload.target=high must be a number"),
        ("study.name=null", "study.name=null must be text"),
        ("study.name=nan", "study.name=nan must be text, not a number"),
        ("study.name=a/b", "study.name='a/b' names a folder"),
        ("+study.margn=1", "study.margn: .*did you mean 'margin'"),
        ("+study.tokens=1", "study.tokens: .*options: .*values"),
    ],
)
def test_a_mistake_in_the_section_is_one_error_with_key_and_value(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read_sections(commands.compose(word))
    assert refused.value.exit_code == 2


def test_every_key_is_set_without_a_plus_and_left_out_of_the_record_where_it_is_not() -> None:
    assert read_tree(commands.compose())["study"] == {"name": "single"}
    for field in dataclasses.fields(StudyConfig):
        assert read_tree(commands.compose(f"study.{field.name}=x"))["study"][field.name] == "x"


def test_the_section_is_typed() -> None:
    words = [
        "study.solved=1",
        "study.shared_seeds=true",
        "study.published=[one, two]",
        "+study.values.rung=a",
    ]
    study = read_sections(commands.compose(*words)).study
    expected = StudyConfig(
        name="single", solved=1.0, shared_seeds=True, published=["one", "two"], values={"rung": "a"}
    )
    assert study == expected


def test_yaml_files_refer_to_values_of_the_study() -> None:
    words = ["study=capacity", "backbone=s4"]
    sections = read_sections(commands.compose(*words))
    assert sections.optimizer.learning_rate == sections.study.values["learning_rate"]["s4"] == 0.01


def test_a_folder_behind_a_link_to_itself_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match=r"runs=.*loop/x leads to a link to itself"):
        read_sections(commands.compose("task=recall", f"runs={tmp_path}/loop/x"))
