"""A run becomes a folder that the Hugging Face library opens: the same logits, the same tokens."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from archbench.experiments.export import export
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.errors import CheckpointError, ConfigError
from archbench.experiments.training.checkpoints.stored_state import in_shards, whole_tensors
from tests.experiments import commands
from tests.experiments.training.parallel.together import train_together

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The overrides that choose a small corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(300):
        words = [f"word{(number * step) % 97}" for step in range(2, 40)]
        (folder / f"{number}.txt").write_text(" ".join(words))
    files = [f"task.paths=[{folder}/*.txt]", f"task.cache_dir={folder / 'cache'}"]
    return ["task=text", "task.sequence_length=64", "task.source=files", *files, *commands.TINY]


BPE = ["task.tokenizer.kind=bpe", "task.tokenizer.vocab_size=300"]


@pytest.fixture(scope="module")
def run(text: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of a second with a tokenizer of its own."""
    return commands.train("backbone=decoder", *text, *BPE, f"runs={tmp_path_factory.mktemp('runs')}")


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


@pytest.mark.full
def test_shards_become_a_folder_and_a_folder_becomes_shards(text: list[str], tmp_path: Path) -> None:
    """A run of two processes is exported; two processes go on from the folder, and from the shards."""
    short = ("budget.batch_size=4", "budget.tokens=2048", "parallel=fsdp", "backbone.tie_embeddings=true")
    desk = tmp_path / "desk"
    run = train_together(2, {"run": ("backbone=decoder", *text, *BPE, *short)}, desk)["run"]
    checkpoint = commands.newest_checkpoint(run)
    assert in_shards(checkpoint)
    saved = load_model(run, CPU)
    weights = whole_tensors(checkpoint, "model")
    own = saved.model.state_dict()
    assert weights
    assert all(torch.equal(own[name], tensor) for name, tensor in weights.items())
    folder = written(run, tmp_path / "folder")
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens_BT = torch.tensor([saved.tokenizer.encode("word3 word17 other")])
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens_BT).logits, saved.model(tokens_BT).logits_BTV)

    given = [word for word in text if not word.startswith("scale")]

    def continued(source: Path) -> tuple[str, ...]:
        tokenizer = ("task.tokenizer.kind=folder", f"task.tokenizer.path={source}")
        return (f"init_from={source}", *given, *tokenizer, *short[:2], "optimizer.learning_rate=1e-12")

    cases = {name: (*continued(source), short[2]) for name, source in (("folder", folder), ("shards", run))}
    again = train_together(2, cases, tmp_path / "again")
    alone = commands.train(*continued(run), f"runs={tmp_path / 'alone'}")
    for name, started in {**again, "alone": alone}.items():
        assert in_shards(commands.newest_checkpoint(started)) == (name != "alone")
        after = load_model(started, CPU).model.state_dict()
        for key, tensor in own.items():
            torch.testing.assert_close(after[key], tensor, atol=1e-6, rtol=0, msg=f"{name}: {key}")

    for path in checkpoint.parent.iterdir():
        (path / "model" / "shard-00002-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model/shard-00002-.* is missing.*no other is whole"):
        load_model(run, CPU)
