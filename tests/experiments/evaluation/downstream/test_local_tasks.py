"""Our own tasks, asked with solved examples of their training split in the prompt."""

import csv
from pathlib import Path

import pytest
from lm_eval.api.instance import Instance

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.data.tokenizers.tokenizer import ByteTokenizer, TokenizerConfig
from archbench.experiments.evaluation.downstream.__main__ import DownstreamConfig, evaluate
from archbench.experiments.evaluation.downstream.lm_eval_model import HarnessModel
from archbench.experiments.evaluation.downstream.local_tasks import local_task
from archbench.experiments.evaluation.downstream.results import Row
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.run.load_model import LoadedModel, Prompts
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.tasks.task import Task
from tests.experiments import commands


@pytest.fixture(scope="module")
def saved() -> LoadedModel:
    task = Prompts(ByteTokenizer(TokenizerConfig(), 28))
    model = Decoder(DecoderConfig(d_model=16), vocab_size=task.vocabulary.size, max_length=512)
    objective = CausalLM(CausalLMConfig(), task)
    return LoadedModel(
        model=model,
        objective=objective,
        task=task,
        run=None,
        folder=Path("toy"),
        step=None,
        description="toy",
    )


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the model is asked, in order."""
    asked: list[str] = []
    for name in ("loglikelihood", "generate_until"):
        answer = getattr(HarnessModel, name)

        def record(self: HarnessModel, requests: list[Instance], answer=answer) -> list[object]:  # type: ignore[no-untyped-def]
            asked.extend(request.args[0] for request in requests)
            return answer(self, requests)

        monkeypatch.setattr(HarnessModel, name, record)
    return asked


def rows_of(saved: LoadedModel, task: Task, **changes: int) -> list[Row]:
    config = DownstreamConfig(run="toy", device=DeviceConfig(name="cpu"), **changes)  # type: ignore[arg-type]
    return evaluate(saved, config, [local_task("own", task, config.seed)])


def films(folder: Path, split: str, count: int) -> Path:
    path = folder / f"{split}.tsv"
    with path.open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerow(["text", "label"])
        table.writerows([[f"{split} film {number}", ("dull", "fine")[number % 2]] for number in range(count)])
    return path


def test_classes_are_chosen_behind_solved_texts_of_the_training_split(
    tmp_path: Path, saved: LoadedModel, prompts: list[str]
) -> None:
    paths = {split: films(tmp_path, split, 20) for split in ("train", "validation", "test")}
    words = ("task=sentences", "task.source=files", f"task.paths=[{paths['train']}]", "backbone=encoder")
    held_out = (f"task.validation_paths=[{paths['validation']}]", f"task.test_paths=[{paths['test']}]")
    task = commands.task(*words, *held_out, "objective=sequence_classification")
    (row,) = rows_of(saved, task, shots=3)
    assert (row.items, row.metric, row.shots, row.shots_from, row.truncated) == (20, "acc", 3, "train", 0)
    assert len(prompts) == 40  # both classes of each text
    for prompt in prompts:
        *solved, asked = prompt.split("\n\n")
        assert len(solved) == 3
        for example in solved:
            text, answer = example.split("\nclass: ")
            assert text.startswith("train film ")
            assert answer == ("dull", "fine")[int(text.split()[-1]) % 2]
        assert asked.startswith("test film ")
        assert asked.endswith("\nclass:")
    (none,) = rows_of(saved, task, shots=0)
    assert none.prompts != row.prompts
    assert rows_of(saved, task, shots=3) == [row]


def test_targets_are_written_behind_solved_pairs(saved: LoadedModel, prompts: list[str]) -> None:
    task = commands.task("task=pairs", "task.max_target=24", "objective=seq2seq")
    (row,) = rows_of(saved, task, shots=2, limit=4)
    assert (row.items, row.metric, row.likelihood, row.shots) == (4, "exact_match", None, 2)
    known = {pair.source: pair.target for pair in task.pairs("train", 1234, 0, 256)}  # type: ignore[attr-defined]
    assert len(prompts) == 4
    for prompt in prompts:
        *solved, asked = prompt.split("\n\n")
        assert len(solved) == 2
        for example in solved:
            source, target = example.removeprefix("source: ").split("\ntarget: ")
            assert known[source] == target
        assert asked.removeprefix("source: ").removesuffix("\ntarget:") not in known


def test_a_limit_takes_a_sample_of_a_sorted_task(saved: LoadedModel, prompts: list[str]) -> None:
    from datasets import Dataset, DatasetDict

    rows = [{"text": f"row {number}", "label": int(number > 50)} for number in range(100)]
    task = {
        "task": "sorted", "custom_dataset": lambda **_: DatasetDict({"test": Dataset.from_list(rows)}),
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{text}}",
        "doc_to_choice": ["a", "b"], "doc_to_target": "{{label}}", "metadata": {"version": "1"},
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    asked = []
    for limit in (20, 20, 10, 100, 200):
        prompts.clear()
        config = DownstreamConfig(run="toy", device=DeviceConfig(name="cpu"), limit=limit)
        (row,) = evaluate(saved, config, [task])
        assert row.items == min(limit, 100)
        asked.append({int(prompt.split()[-1]) for prompt in prompts})
    assert asked[0] == asked[1]
    assert asked[2] < asked[0]
    assert 30 < sum(asked[0]) / 20 < 70
    assert asked[3] == asked[4] == set(range(100))


def test_other_tasks_are_refused_with_what_takes_them() -> None:
    with pytest.raises(ConfigError, match=r"task=recall: .* use archbench evaluate for other tasks"):
        local_task("recall", commands.task(*commands.RECALL), 0)
