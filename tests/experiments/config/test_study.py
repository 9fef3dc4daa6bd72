"""The section ``study`` is checked when the configuration is read, before anything is trained."""

from __future__ import annotations

import dataclasses

import pytest

from experiments.config.sections import read_sections, read_tree
from experiments.config.study import StudyConfig
from experiments.runtime.errors import ConfigError
from tests.experiments import commands


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("study.solved=7", "study.solved=7 must be an accuracy above 0, up to 1"),
        ("study.solved=0", "study.solved=0 must be an accuracy"),
        ("study.solved=most", "study.solved: Value 'most'"),
        ("study.margin=-0.1", "study.margin=-0.1 must be a difference of scores, 0 or more"),
        ("study.margin=1e400", "study.margin=inf must be a finite number"),
        ("study.shared_seeds=7", "study.shared_seeds=7 must be true or false"),
        ("study.fixed_grid=7", "study.fixed_grid=7 must be true or false"),
        ("study.fixed_grid=null", "study.fixed_grid: .*None"),
        ("study.published=null", "study.published: "),
        ("study.published=[[1]]", r"study.published=\[\[1\]\]: \[1\] must be a single value"),
        ("study.published=text", r"study.published=text must be a list: write study.published=\[text\]"),
        ("study.baseline=[decoder]", "study.baseline: Cannot convert"),
        ("study.tuned={a: 1}", "study.tuned: "),
        ("study.values=3", "study.values: "),
        ("study.workload={targt: 1}", "study.workload.targt: .*did you mean 'target'"),
        ("study.workload={target: high}", "study.workload.target: Value 'high'"),
        ("study.name=null", "study.name has no value: set study.name="),
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
    words = ["study=compare", "backbone=s4", "task=recall_8_pairs"]
    sections = read_sections(commands.compose(*words))
    assert sections.optimizer.learning_rate == sections.study.values["learning_rate"]["recall_8_pairs"]["s4"]
