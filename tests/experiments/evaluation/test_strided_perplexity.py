"""Perplexity with a stride: that of the recipe of the ``transformers`` documentation, computed by theirs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from experiments.evaluate import evaluate
from experiments.runtime.errors import ConfigError
from tests.architectures.pretrained.folders import EAGER, TEXT, make_folder
from tests.experiments import commands
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
        (("stride=90",), "stride=90 must be from 1 to window=80"),
        (("task=text",), "text and task are given"),
    ],
)
def test_what_cannot_be_scored_is_refused(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    folder, file = make_folder("llama", tmp_path / "llama"), tmp_path / "text"
    file.write_text(TEXT)
    with pytest.raises(ConfigError, match=message):
        evaluate(commands.compose(f"run={folder}", f"text={file}", *words, "device=cpu", root="evaluate"))
