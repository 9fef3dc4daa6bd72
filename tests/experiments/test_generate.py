"""Text from trained runs: the same however it is asked for, printed as it is written."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from archbench.experiments.config.hydra_overrides import literal
from archbench.experiments.data.tokenizers.tokenizer import ByteTokenizer, TokenizerConfig
from archbench.experiments.generate import GenerateConfig, Printer, generate
from archbench.experiments.objectives.decoding.stops import stop_tokens
from archbench.experiments.run.generation.settings import (
    BeamOverrides,
    ConstraintOverrides,
    SamplingOverrides,
)
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.errors import ConfigError, DataError
from tests.experiments import commands

BYTES = ByteTokenizer(TokenizerConfig(), 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each way to write: left to right, from a source, by unmasking; and one that knows no text."""
    folder = f"runs={tmp_path_factory.mktemp('runs')}"
    tiny = (*commands.TINY, folder)
    found = {name: commands.train(f"backbone={name}", *commands.SHORT_TEXT, *tiny) for name in WRITERS}
    return {**found, "recall": commands.train("backbone=mamba", *commands.RECALL, *tiny)}


WRITERS = ("decoder", "encoder_decoder", "masked_diffusion")


def said(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> str:
    """What ``experiments.generate`` prints."""
    capsys.readouterr()
    generate(commands.compose(*literal([f"run={run}", *words]), "device=cpu", root="generate"))
    return capsys.readouterr().out


@pytest.mark.parametrize("name", WRITERS)
def test_a_text_printed_as_it_is_written_is_that_of_a_batch(
    runs: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("max_tokens=24", "seed=3", "sampling.top_p=0.9", "stop=[eos, e]")
    alone = [said(capsys, runs[name], f"prompt={prompt}", *words) for prompt in ("def f, g", "a")]
    both = said(capsys, runs[name], "prompt=['def f, g', a]", "num_samples=2", *words)
    texts = [part.split(" ---\n", 1)[1] for part in both.split("--- ")[1:] if " ---\n" in part]
    assert len(texts) == 4
    assert texts[0] == alone[0]  # the first sample of the first prompt
    assert texts[0].startswith("def f, g")
    assert texts[0] != texts[1]
    assert "e" not in texts[2].rstrip("\n")[1:-1]


def test_it_writes_what_the_model_thinks_most_likely(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    saved = load_model(runs["decoder"], torch.device("cpu"))
    tokens = saved.tokenizer.encode("The ")
    for _ in range(10):
        read = torch.tensor([[saved.task.vocabulary.bos, *tokens]])
        tokens.append(int(saved.model(read).logits_BTV[0, -1, :256].argmax()))
    greedy = ("sampling.temperature=0", "max_tokens=10", "stop=[]")
    assert said(capsys, runs["decoder"], "prompt=The ", *greedy) == saved.tokenizer.decode(tokens) + "\n"
    beams = ("beam.num_beams=3", "num_samples=3", "max_tokens=10", "stop=[]")
    best = said(capsys, runs["decoder"], "prompt=The ", *beams).split("--- ")[1:]
    assert [text[:15] for text in best] == [f"{number} of 3 ---\nThe " for number in (1, 2, 3)]
    assert len({text[15:] for text in best}) == 3


def test_characters_are_printed_when_their_last_byte_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    stdout = SimpleNamespace(write=written.append, flush=lambda: written.append("|"))
    monkeypatch.setattr(sys, "stdout", stdout)
    request = SimpleNamespace(as_text=lambda prompt, new: BYTES.decode([*prompt, *new]), prompts=[list(b">")])
    printer = Printer(request)  # type: ignore[arg-type]
    for byte in [*"né🙂".encode(), 0xFF, ord("x"), 0xC3]:
        printer(0, byte)
    printer.finish(">né🙂\ufffdx\ufffd")
    shown = [piece for piece in "".join(written).split("|") if piece]
    assert shown == [">n", "é", "🙂", "\ufffdx", "\ufffd", "\n"]


def test_stop_is_the_end_token_or_text_of_one_token() -> None:
    assert stop_tokens(["eos", "\n", "x"], BYTES) == {BYTES.vocabulary.eos, 10, 120}
    assert stop_tokens([], BYTES) == set()
    with pytest.raises(ConfigError, match="stop: 'é' is 2 tokens"):
        stop_tokens(["é"], BYTES)


@pytest.mark.parametrize(
    "text",
    [
        "a, b",
        "it's",
        'a "b"',
        "${seed}",
        "\\${seed}",
        "\\\\${seed} \\",
        " [",
        "x=1",
        "{a: b}",
        "",
        "two\nlines",
    ],
)
def test_any_text_can_be_a_prompt(text: str) -> None:
    cfg = commands.compose(*literal(["run=some folder, or not", f"prompt={text}"]), root="generate")
    assert cfg.run == "some folder, or not"
    assert cfg.prompt == text


@pytest.mark.parametrize(
    ("name", "words", "error", "message"),
    [
        ("recall", [], ConfigError, "was not trained on text"),
        ("decoder", ["stop=[ab]", "beam.num_beams=2"], ConfigError, "'ab' is several tokens"),
        ("decoder", ["prompt=", "messages=[{role: user, content: x}]"], ConfigError, "has no chat template"),
        ("decoder", ["max_tokens=0"], ConfigError, "max_tokens=0 must be at least 1"),
        ("decoder", ["sampling.top_p=2"], ConfigError, "top_p=2.0 must be in"),
        ("decoder", ["beam.num_beams=2", "num_samples=3"], ConfigError, "num_samples=3 must not be more"),
        (
            "masked_diffusion",
            ["beam.num_beams=2"],
            DataError,
            "trains no model that writes from left to right",
        ),
        ("masked_diffusion", ["sampling.repetition_penalty=2"], ConfigError, "repetition_penalty=2.0: "),
    ],
)
def test_what_cannot_be_is_refused(
    runs: dict[str, Path], name: str, words: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        generate(commands.compose(f"run={runs[name]}", "prompt=x", "device=cpu", *words, root="generate"))


def test_as_a_command_it_prints_text_or_one_line_and_exit_code_2(runs: dict[str, Path]) -> None:
    good = commands.run("generate", f"run={runs['decoder']}", "prompt=Hi, you", "max_tokens=5", "device=cpu")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("Hi, you")
    bad = commands.run("generate", f"run={runs['decoder']}", "promt=x")
    message = "error: promt: there is no such key; did you mean 'prompt'?\n"
    assert (bad.returncode, bad.stdout, bad.stderr) == (2, "", message)


def test_the_yaml_lists_all_that_can_be_set() -> None:
    cfg = commands.compose("run=x", root="generate")
    assert set(cfg) == {f.name for f in dataclasses.fields(GenerateConfig)} | {"prompt", "messages"}
    for section, kind in (
        ("sampling", SamplingOverrides),
        ("beam", BeamOverrides),
        ("constraints", ConstraintOverrides),
    ):
        assert set(cfg[section]) == {f.name for f in dataclasses.fields(kind)}
    assert set(OmegaConf.to_container(cfg.sampling).values()) == {None}
