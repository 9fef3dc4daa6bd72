"""A saved model is evaluated as its own run was, and on other tasks."""

import json
import math
import shutil
from pathlib import Path

import pytest

from archbench.architectures.pretrained import save_folder
from archbench.experiments.evaluate import evaluate
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.device import torch_device
from archbench.experiments.runtime.errors import ConfigError, DataError
from tests.experiments import commands

DEVICE = torch_device("cpu")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    return commands.train("backbone=decoder", *commands.SHORT_TEXT, *commands.TINY, f"runs={runs}")


def said(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> str:
    capsys.readouterr()
    evaluate(commands.compose(f"run={run}", "device=cpu", "examples=8", *words, root="evaluate"))
    return capsys.readouterr().out


def test_the_metric_of_a_run_is_found_again(
    decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    out = said(capsys, decoder, f"output={file}", "batch_size=3")
    expected = commands.result(decoder)["metrics"][0]
    found = json.loads(file.read_text())
    assert found["metrics"][0] == {
        **expected,
        "value": pytest.approx(expected["value"], rel=1e-5),
        "standard_error": pytest.approx(expected["standard_error"], rel=1e-4),
    }
    assert found["fingerprint"] == commands.result(decoder)["fingerprint"]
    value, error = expected["value"], expected["standard_error"]
    assert f"test bits_per_byte {value:.4f} ± {error:.4f} bits/byte" in out
    extent = "8 of 3,151 items, windows of 64 tokens of which each scores 32; standard error over 7 documents"
    assert f"({extent}; exact likelihood, chain rule)" in out
    batch = commands.task(*commands.SHORT_TEXT).batch("test", 0, 0, 8)
    nats_per_token = value * math.log(2) * batch.bytes_BT.sum().item() / batch.tokens_BT.numel()
    assert found["perplexity_per_token"] == pytest.approx(math.exp(nats_per_token), rel=1e-5)
    assert f"perplexity per token {math.exp(nats_per_token):.4f}" in out


def test_code_that_has_changed_since_training_is_named(
    decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(decoder, tmp_path / "s0"))
    load_model(copy, DEVICE)
    assert capsys.readouterr().err == ""
    file = copy / "provenance.json"
    provenance = json.loads(file.read_text())
    file.write_text(
        json.dumps({**provenance, "code": {**provenance["code"], "archbench.architectures": "0" * 16}})
    )
    load_model(copy, DEVICE)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {copy}: the code of archbench.architectures has changed")


def test_another_task_and_split_may_be_named(decoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = said(capsys, decoder)
    assert "validation bits_per_byte" in said(capsys, decoder, "split=validation")
    other = said(capsys, decoder, "task=text", "task.sequence_length=32")
    assert "test bits_per_byte" in other
    assert own.splitlines()[0] == other.splitlines()[0]  # the same model
    assert own != other
    with pytest.raises(ConfigError, match=r"vocabulary of 288 tokens, the task another, of 24"):
        said(capsys, decoder, "task=recall")


def test_answers_are_counted_without_a_perplexity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = commands.train("backbone=encoder", *commands.RECALL, *commands.TINY, f"runs={tmp_path}")
    out = said(capsys, run)
    assert f"test answer_accuracy {commands.result(run)['metrics'][0]['value']:.4f}" in out
    assert "perplexity" not in out


def test_a_hugging_face_folder_needs_a_task_and_gets_the_same_value(
    decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    save_folder(load_model(decoder, DEVICE).model, folder)
    with pytest.raises(ConfigError, match="has no task: name one, such as task=text"):
        said(capsys, folder)
    theirs = said(capsys, folder, *commands.SHORT_TEXT).splitlines()
    assert theirs[1:] == said(capsys, decoder).splitlines()[1:]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("split=tset", "split='tset' is unknown; did you mean 'test'"),
        ("examples=1", "examples=1 must be 2 or more"),
        ("output=/nowhere/at/all.json", "output=/nowhere/at/all.json: cannot be written"),
    ],
)
def test_what_cannot_be_is_refused(
    decoder: Path, word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=message):
        said(capsys, decoder, word)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["text=story.txt", "examples=8"],
            "^examples: for a task, and text=story.txt is one sequence",
        ),
        (["text=story.txt", "split=train", "recall=true"], "^split, recall: for a task"),
        (["text=story.txt", "filling.steps=4"], "^filling: for a task"),
        (["text=''"], "text= is empty"),
        (["text=rows.jsonl"], r"holds rows, not one text: .* task.test_paths=\[rows.jsonl\]"),
        (["text=/dev/zero"], "/dev/zero cannot be read: it is an endless device"),
    ],
)
def test_settings_and_files_that_do_not_fit_a_text_are_refused(
    decoder: Path, words: list[str], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        evaluate(commands.compose(f"run={decoder}", "device=cpu", *words, root="evaluate"))


def test_as_a_command_it_says_in_one_line_why_not(decoder: Path) -> None:
    bad = commands.run("evaluate", f"run={decoder.parent}")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.count("\n") == 1
    assert "is neither the folder of a run" in bad.stderr
