"""What a text costs in other units, window by window and position by position."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from archbench.experiments.evaluate import evaluate
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.device import torch_device
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

DEVICE = torch_device("cpu")
TEXT = "Ein naïver Satz über Straßen, größer als häufig nötig. " * 30


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("text")
    found = [
        "task=text",
        "task.source=files",
        "task.sequence_length=32",
        f"task.cache_dir={folder / 'cache'}",
    ]
    for split, key in (("train", "paths"), ("validation", "validation_paths"), ("test", "test_paths")):
        (folder / f"{split}.txt").write_text(f"{split}: {TEXT}")
        found.append(f"task.{key}=[{folder / f'{split}.txt'}]")
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runs")
    return {
        name: commands.train(f"backbone={name}", *words, *commands.TINY, f"runs={place}")
        for name in ("decoder", "encoder")
    }


def found(run: Path, folder: Path, *words: str) -> dict:
    file = folder / "found.json"
    evaluate(commands.compose(f"run={run}", "device=cpu", f"output={file}", *words, root="evaluate"))
    return json.loads(file.read_text())


def scored_by(words: list[str], windows: int) -> torch.Tensor:
    """True at the tokens of the first test windows that are scored."""
    return commands.task(*words).batch("test", 0, 0, windows).answer_BT


def nats_of(run: Path, words: list[str], windows: int) -> torch.Tensor:
    """The loss of each token of the first test windows, by hand."""
    saved, batch = load_model(run, DEVICE), commands.task(*words).batch("test", 0, 0, windows)
    begin = torch.full((windows, 1), saved.task.vocabulary.bos)
    with torch.no_grad():
        logits_BTV = saved.model(torch.cat([begin, batch.tokens_BT[:, :-1]], 1)).logits_BTV
    return -logits_BTV.log_softmax(-1).gather(-1, batch.tokens_BT[..., None])[..., 0]


def test_rates_are_the_same_nats_over_other_counts(
    runs: dict[str, Path], words: list[str], tmp_path: Path
) -> None:
    """Of the whole split: every token once, its end token included."""
    windows = commands.task(*words).num_examples("test")
    nats = nats_of(runs["decoder"], words, windows)[scored_by(words, windows)].sum().item()
    values = found(runs["decoder"], tmp_path, "batch_size=7", "stretches=4")
    test = f"test: {TEXT}"
    text = test.encode()
    assert values["metrics"][0]["scored"] == "whole split"
    characters = sum(byte & 0xC0 != 0x80 for byte in text)
    assert characters < len(text)
    assert values["metrics"][0]["value"] == pytest.approx(nats / len(text) / math.log(2), rel=1e-5)
    assert values["perplexity_per_token"] == pytest.approx(math.exp(nats / (len(text) + 1)), rel=1e-5)
    assert values["bits_per_character"] == pytest.approx(nats / characters / math.log(2), rel=1e-5)
    per_word = nats / len(text) * len(test.encode()) / len(test.split())
    assert math.log(values["perplexity_per_word"]) == pytest.approx(per_word, rel=1e-5)


def test_perplexity_per_word_divides_by_the_published_words(
    runs: dict[str, Path], words: list[str], tmp_path: Path
) -> None:
    values = found(runs["decoder"], tmp_path, "examples=20", *words, "task.test_words=900")
    nats_per_byte = values["metrics"][0]["value"] * math.log(2)
    num_bytes = len(f"test: {TEXT}".encode())
    assert math.log(values["perplexity_per_word"]) == pytest.approx(nats_per_byte * num_bytes / 900, rel=1e-6)


def test_loss_by_position_is_that_of_the_positions(
    runs: dict[str, Path], words: list[str], tmp_path: Path
) -> None:
    nats_BT = nats_of(runs["decoder"], words, 20)
    values = found(runs["decoder"], tmp_path, "examples=20", "batch_size=7", "stretches=3")["by_position"]
    assert [(v["begin"], v["end"]) for v in values] == [(0, 10), (10, 21), (21, 32)]
    for v in values:
        assert v["nats_per_token"] == pytest.approx(nats_BT[:, v["begin"] : v["end"]].mean().item(), rel=1e-5)


def test_the_loss_is_split_by_what_recall_could_have_given(
    runs: dict[str, Path], words: list[str], tmp_path: Path
) -> None:
    nats_BT = nats_of(runs["decoder"], words, 20)
    tokens_BT = commands.task(*words).batch("test", 0, 0, 20).tokens_BT.tolist()
    again_BT = torch.zeros_like(nats_BT, dtype=torch.bool)
    for row, tokens in enumerate(tokens_BT):
        pairs = list(pairwise(tokens))
        for place, pair in enumerate(pairs):
            again_BT[row, place + 1] = pair in pairs[:place]
    values = found(runs["decoder"], tmp_path, "examples=20", "batch_size=7", "recall=true")["by_recall"]
    for name, slice_BT in (("repeated", again_BT), ("other", ~again_BT)):
        assert values[name]["tokens"] == int(slice_BT.sum()) > 0
        assert values[name]["nats_per_token"] == pytest.approx(nats_BT[slice_BT].mean().item(), rel=1e-5)


def test_a_stride_scores_each_token_in_the_window_where_it_has_most_context(
    runs: dict[str, Path], words: list[str], tmp_path: Path
) -> None:
    strided = [*words, "task.stride=8"]
    nats_BT = nats_of(runs["decoder"], strided, 12)
    scored_BT = scored_by(strided, 12)
    assert set(scored_BT.sum(1).tolist()) <= {8, 32}  # 32 of the first window of the text
    values = found(runs["decoder"], tmp_path, "examples=12", *strided)
    expected = math.exp(nats_BT[scored_BT].mean().item())
    assert values["perplexity_per_token"] == pytest.approx(expected, rel=1e-5)


def test_what_only_reading_from_left_to_right_can_say_is_refused_elsewhere(
    runs: dict[str, Path], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="set stretches=null"):
        found(runs["encoder"], tmp_path, "examples=4", "stretches=2")
    with pytest.raises(ConfigError, match=r"recall: .* set recall=false"):
        found(runs["encoder"], tmp_path, "examples=4", "recall=true")
    with pytest.raises(ConfigError, match="stretches=33 must be from 1 to 32"):
        found(runs["decoder"], tmp_path, "examples=4", "stretches=33")
