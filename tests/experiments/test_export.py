"""A run becomes a folder that the Hugging Face library opens: the same logits, the same tokens."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.export import export
from experiments.run.load_model import load_model
from experiments.runtime.errors import ConfigError
from tests.experiments import commands

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of a second with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("runs")
    for number in range(300):
        words = [f"word{(number * step) % 97}" for step in range(2, 40)]
        (folder / f"{number}.txt").write_text(" ".join(words))
    text = ["task=text", "task.sequence_length=64", "task.source=files", f"task.paths=[{folder}/*.txt]"]
    bpe = ["task.tokenizer.kind=bpe", "task.tokenizer.vocab_size=300", f"task.cache_dir={folder / 'cache'}"]
    return commands.train("backbone=decoder", *text, *bpe, *commands.TINY, f"runs={folder / 'runs'}")


def written(run: Path, to: Path, *words: str) -> Path:
    export(commands.compose(f"run={run}", f"to={to}", *words, root="export"))
    return to


def test_a_run_is_the_same_model_there(run: Path, tmp_path: Path) -> None:
    folder = written(run, tmp_path / "new" / "exported", "shard_bytes=20000")
    assert not (folder / "model.safetensors").exists()
    assert sorted(p.name for p in folder.parent.iterdir()) == ["exported"]
    saved = load_model(run, CPU)
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    text = "word3 word17 other"
    tokens = saved.tokenizer.encode(text)
    assert AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False) == tokens
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits
        torch.testing.assert_close(saved.model(torch.tensor([tokens])).logits_BTV, expected)
    vocabulary = saved.task.vocabulary
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (vocabulary.bos, vocabulary.eos)


def test_what_it_writes_can_be_opened_and_written_again(run: Path, tmp_path: Path) -> None:
    first = written(run, tmp_path / "first")
    second = written(first, tmp_path / "second")
    one, two = (load_model(folder, CPU) for folder in (first, second))
    assert one.tokenizer.fingerprint == two.tokenizer.fingerprint
    assert all(torch.equal(t, two.model.state_dict()[n]) for n, t in one.model.state_dict().items())


def test_a_folder_is_never_written_over(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists"):
        written(run, tmp_path)


def test_a_model_unknown_there_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    s4 = commands.train("backbone=s4", *commands.RECALL, *commands.TINY, f"runs={tmp_path / 'runs'}")
    with pytest.raises(ConfigError, match="no Hugging Face model is the same as this S4"):
        written(s4, tmp_path / "exported")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]
