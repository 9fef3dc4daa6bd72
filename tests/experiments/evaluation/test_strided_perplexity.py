"""Perplexity with a stride: that of the recipe of the ``transformers`` documentation, computed by theirs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from archbench.experiments.data.local_files import read_files
from archbench.experiments.evaluate import evaluate
from archbench.experiments.evaluation.perplexity import StridedPerplexity, strided_perplexity
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.errors import ConfigError, DataError
from tests.architectures.pretrained.folders import EAGER, TEXT, make_folder
from tests.experiments import commands
from tests.experiments.objectives import toys
from tests.tiers import fast_only


@torch.no_grad()
def recipe(folder: Path, text: str, window: int, stride: int) -> tuple[float, int]:
    """The steps of the recipe, with the loss that their model returns."""
    model: Any = hf.AutoModelForCausalLM.from_pretrained(folder, **EAGER).eval()
    ids = hf.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
    nats, tokens, reached = 0.0, 0, 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + window, ids.shape[1])
        piece = ids[:, begin:end]
        labels = piece.clone()
        labels[:, : -(end - reached)] = -100
        counted = int((labels != -100).sum()) - 1
        nats += model(piece, labels=labels).loss.item() * counted
        tokens += counted
        reached = end
        if end == ids.shape[1]:
            break
    return math.exp(nats / tokens), tokens


@pytest.mark.parametrize("name", fast_only(["qwen2", "llama", "gpt2", "mamba", "mixtral"], ["llama"]))
@pytest.mark.parametrize(("window", "stride"), [(64, 17), (80, 80)])
def test_it_is_that_of_the_recipe(name: str, window: int, stride: int, tmp_path: Path) -> None:
    folder, file, found = make_folder(name, tmp_path / name), tmp_path / "text", tmp_path / "found.json"
    file.write_text(TEXT)
    words = (f"run={folder}", f"text={file}", f"window={window}", f"stride={stride}", f"output={found}")
    evaluate(commands.compose(*words, "device=cpu", root="evaluate"))
    perplexity, tokens = recipe(folder, TEXT, window, stride)
    result = json.loads(found.read_text())
    assert result["tokens"] == tokens
    assert result["perplexity"] == pytest.approx(perplexity, rel=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("window=81",), "window=81 must be from 2 to 80"),
        (("stride=1",), "stride=1 must be from 2 to window=80"),
        (("stride=90",), "stride=90 must be from 2 to window=80"),
        (("task=text",), "text and task are given"),
    ],
)
def test_what_cannot_be_scored_is_refused(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    folder, file = make_folder("llama", tmp_path / "llama"), tmp_path / "text"
    file.write_text(TEXT)
    with pytest.raises(ConfigError, match=message):
        evaluate(commands.compose(f"run={folder}", f"text={file}", *words, "device=cpu", root="evaluate"))


@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 4), (5, 5), (3, 2), (4, 2)])
def test_a_last_window_of_one_token_counts_for_none(window: int, stride: int) -> None:
    model = toys.build("decoder", 11)
    tokens = toys.random_text(1, 20, 11).tokens_BT[0].tolist()
    for length in range(2, 20):
        found = strided_perplexity(model, tokens[:length], window=window, stride=stride, precision="fp32")
        nats = counted = reached = 0.0
        for begin in range(0, length, stride):
            end, new = min(begin + window, length), min(begin + window, length) - int(reached)
            if new > 1:
                read_1T = torch.tensor([tokens[begin:end]])
                scored = min(new, end - begin - 1)
                log_p_TV = model(read_1T).logits_BTV[0].log_softmax(-1)[-scored - 1 : -1]
                loss = -log_p_TV.gather(1, read_1T[0, -scored:, None]).mean().item()
                nats, counted = nats + loss * (new - 1), counted + new - 1
            reached = end
            if end == length:
                break
        assert found.tokens == counted
        assert found.perplexity == pytest.approx(math.exp(nats / counted), rel=1e-4)


@pytest.mark.parametrize(
    "data", [b"one\r\ntwo\r\n", b"\xef\xbb\xbfone\r\ntwo", b"one\rtwo\n", "a\u2028b\x0b\x0c".encode()]
)
def test_a_text_is_read_as_in_training(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, scored = tmp_path / "story.txt", list[list[int]]()
    file.write_bytes(data)
    (document,) = read_files([file], "text")
    folder = make_folder("gpt2", tmp_path / "gpt2")

    def record(model: Any, tokens: list[int], **settings: Any) -> StridedPerplexity:
        scored.append(tokens)
        return strided_perplexity(model, tokens, **settings)

    monkeypatch.setattr("archbench.experiments.evaluate.strided_perplexity", record)
    evaluate(commands.compose(f"run={folder}", f"text={file}", "device=cpu", root="evaluate"))
    saved = load_model(folder, torch.device("cpu"))
    assert scored == [saved.prompt(document.text)]
    file.write_bytes(data.decode().encode("utf-16"))
    with pytest.raises(DataError, match="is UTF-16"):
        evaluate(commands.compose(f"run={folder}", f"text={file}", "device=cpu", root="evaluate"))
