"""Trained models are found again: whole, in another place, and as the beginning of another training."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.pretrained import save_folder
from archbench.architectures.pretrained.config_diff import differences
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM
from archbench.experiments.run.load_model import load_model, read_run
from archbench.experiments.run.model_files import fingerprint, load_state, model_checkpoint, read_model_spec
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, DataError
from archbench.experiments.tracking.run_files import checksum
from tests.experiments import commands

CPU = torch.device("cpu")
Overrides = Callable[..., list[str]]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The overrides that choose a small corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(400):
        words = [f"word{(number * step) % 97}" for step in range(2, 40)]
        (folder / f"{number}.txt").write_text(" ".join(words))
    place = [f"task.paths=[{folder}/*.txt]", f"task.cache_dir={folder / 'cache'}"]
    return ["task=text", "task.sequence_length=64", "task.source=files", *place]


@pytest.fixture(scope="module")
def run(text: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of a second, trained on text by a tokenizer of its own."""
    runs = tmp_path_factory.mktemp("runs")
    words = ("task.tokenizer.kind=bpe", "task.tokenizer.vocab_size=300", f"runs={runs}")
    return commands.train("backbone=decoder", *text, *commands.TINY, *words)


@pytest.fixture(scope="module")
def recall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("recall")
    return commands.train("backbone=mamba", *commands.RECALL, *commands.TINY, f"runs={runs}")


@pytest.fixture(scope="module")
def continued(run: Path, text: list[str]) -> Callable[..., list[str]]:
    """The overrides of a training that starts from the run's weights, or those of ``initial``."""
    tokenizer = ("task.tokenizer.kind=folder", f"task.tokenizer.path={run}")
    tiny = [word for word in commands.TINY if not word.startswith("scale")]

    def overrides(*words: str, initial: Path = run) -> list[str]:
        return [f"init_from={initial}", *text, *tiny, *tokenizer, *words]

    return overrides


def test_a_run_is_opened_with_its_weights_and_tokenizer_wherever_it_lies(run: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(shutil.copytree(run, tmp_path / "copy"), tmp_path / "moved"))
    saved = load_model(moved, CPU)
    weights = load_file(model_checkpoint(run) / "model.safetensors")
    assert weights
    assert all(torch.equal(saved.model.state_dict()[name], tensor) for name, tensor in weights.items())
    assert not saved.model.training
    assert isinstance(saved.objective, CausalLM)
    written = "def naïve(x): return x"
    assert saved.tokenizer.decode(saved.tokenizer.encode(written)) == written
    assert saved.task.vocabulary.size == saved.model.vocab_size
    assert saved.run is not None
    assert saved.run.cell == commands.result(run)["cell"]
    with pytest.raises(DataError, match="name a task, such as task=text"):
        saved.task.batch("test", 0, 0, 1)


def test_a_run_that_learned_no_text_is_opened_on_its_task(recall: Path) -> None:
    saved = load_model(recall, CPU)
    assert saved.task.batch("test", 0, 0, 2).tokens_BT.shape == (2, 32)
    with pytest.raises(ConfigError, match="it has no tokenizer"):
        _ = saved.tokenizer


def test_an_interrupted_run_is_as_good_and_one_without_checkpoint_is_none(run: Path, tmp_path: Path) -> None:
    stopped = Path(shutil.copytree(run, tmp_path / "s0"))
    (stopped / "result.json").unlink()
    assert load_model(stopped, CPU).model.vocab_size == read_model_spec(run).vocab_size
    for checkpoint in (stopped / "checkpoints").iterdir():
        (checkpoint / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"model.safetensors has 6 bytes.*no other is whole"):
        load_model(stopped, CPU)
    assert len(list((stopped / "checkpoints").glob("step-*"))) > 0  # nothing was set aside
    shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(CheckpointError, match="no checkpoint was saved"):
        load_model(stopped, CPU)


def test_folders_that_hold_no_model_are_refused_with_the_nearest(run: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder; did you mean 's0'"):
        load_model(run.with_name("s00"), CPU)
    with pytest.raises(ConfigError, match="is neither the folder of a run"):
        load_model(run.parent, CPU)


def test_a_hugging_face_folder_is_opened_like_a_run(run: Path, text: list[str], tmp_path: Path) -> None:
    ours = load_model(run, CPU)
    assert isinstance(ours.model, Decoder)
    folder = tmp_path / "hub model"
    save_folder(ours.model, folder)
    for name in ("tokenizer.json", "special_tokens_map.json"):
        if (run / name).exists():
            shutil.copy(run / name, folder)
    saved = load_model(folder, CPU)
    assert saved.run is None
    assert isinstance(saved.objective, CausalLM)
    tokens = torch.tensor([saved.tokenizer.encode("word1 word2")])
    torch.testing.assert_close(saved.model(tokens).logits_BTV, ours.model(tokens).logits_BTV)
    assert read_model_spec(folder).name == "hub-model"
    assert read_model_spec(folder).tokenizer == read_model_spec(run).tokenizer
    with pytest.raises(ConfigError, match="vocabulary"):
        load_model(folder, CPU, task=commands.task(*text))


def test_training_starts_from_the_weights(run: Path, continued: Overrides, tmp_path: Path) -> None:
    folder = commands.train(*continued(f"runs={tmp_path}", "optimizer.learning_rate=1e-12"))
    result = commands.result(folder)
    assert (result["backbone"], result["scale"]) == ("decoder", "given")
    assert result["initial"] == {"path": str(run), "fingerprint": fingerprint(run)}
    before, after = (load_model(f, CPU).model.state_dict() for f in (run, folder))
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, atol=1e-6, rtol=0)
    assert result["metrics"][0]["value"] == pytest.approx(
        commands.result(run)["metrics"][0]["value"], abs=1e-4
    )
    shutil.rmtree(folder / "checkpoints" / ".none", ignore_errors=True)
    assert load_model(folder, CPU).run is not None  # the weights are its own now


def test_training_names_code_that_has_changed_since_its_initial_model_was_trained(
    run: Path, continued: Overrides, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("budget.tokens=300", f"runs={tmp_path / 'runs'}")
    commands.train(*continued(*words))
    assert "has changed" not in capsys.readouterr().err
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    provenance = json.loads((copy / "provenance.json").read_text())
    provenance["code"]["archbench.architectures"] = "0" * 16
    (copy / "provenance.json").write_text(json.dumps(provenance))
    commands.train(*continued(*words, "seed=1", initial=copy))
    expected = f"warning: {copy}: the code of archbench.architectures has changed since this run"
    assert expected in capsys.readouterr().err


def test_the_digest_holds_the_weights_and_not_their_place(
    run: Path, continued: Overrides, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    digest = commands.settings(*continued()).digest
    assert commands.settings(*continued(initial=copy)).digest == digest
    other = {**json.loads((copy / "model.json").read_text()), "max_length": 99}
    (copy / "model.json").write_text(json.dumps({**other, "checksum": checksum(other)}))
    assert commands.settings(*continued(initial=copy)).digest != digest


@pytest.mark.parametrize("word", ["backbone=mamba", "backbone.d_model=8", "scale=nano", "scale.depth=3"])
def test_another_model_beside_the_initial_one_is_refused(continued: Overrides, word: str) -> None:
    with pytest.raises(ConfigError, match=f"{word} together with init_from=.* leave it out"):
        commands.settings(*continued(word))


def test_the_same_model_beside_the_initial_one_is_not(run: Path, continued: Overrides) -> None:
    width = read_model_spec(run).config.width
    settings = commands.settings(*continued("backbone=decoder", f"backbone.d_model={width}"))
    assert settings.backbone == read_model_spec(run).config


@pytest.mark.parametrize(
    "word", ["block.dropout=0.25", "experts.balance_coefficient=0.5", "attention.dropout=0.1"]
)
def test_settings_of_training_replace_those_of_the_initial_model(
    run: Path, continued: Overrides, word: str
) -> None:
    part, setting = word.partition("=")[0].split(".")
    settings = commands.settings(*continued(f"backbone.{word}"))
    assert getattr(getattr(settings.backbone, part), setting) == float(word.partition("=")[2])
    assert settings.digest != commands.settings(*continued()).digest
    assert differences(settings.backbone, read_model_spec(run).config) == []


def test_a_task_of_other_tokens_is_refused(continued: Overrides) -> None:
    words = [word for word in continued() if "tokenizer" not in word]
    with pytest.raises(ConfigError, match=r"a vocabulary of 332 tokens, the task another, of 288"):
        commands.train(*words)


def test_only_a_readout_may_be_new() -> None:
    def model(width: int, labels: int | None, layers: int = 1) -> Decoder:
        made = Decoder(DecoderConfig(d_model=width, num_layers=layers), vocab_size=11, max_length=8)
        if labels:
            made.attach_readout(torch.nn.Linear(width, labels))
        return made

    source, target = model(16, 3), model(16, 5)
    untouched = target.readout.weight.clone()
    load_state(source.state_dict(), target, Path("x"), new_readout=True)
    assert torch.equal(target.embedding.state_dict().popitem()[1], source.embedding.state_dict().popitem()[1])
    assert torch.equal(target.readout.weight, untouched)
    load_state(source.state_dict(), model(16, None), Path("x"), new_readout=True)
    load_state(model(16, None).state_dict(), target, Path("x"), new_readout=True)
    with pytest.raises(ConfigError, match=r"of another shape: readout.weight \(3, 16\), not \(5, 16\), "):
        load_state(source.state_dict(), target, Path("x"), new_readout=False)
    with pytest.raises(ConfigError, match=r"missing: readout\.bias, readout\.weight"):
        load_state(model(16, None).state_dict(), target, Path("x"), new_readout=False)
    with pytest.raises(ConfigError, match=r"of another shape: .* not .* and \d+ more"):
        load_state(model(32, None).state_dict(), target, Path("x"), new_readout=True)
    with pytest.raises(ConfigError, match=r"missing: .*; left over: |left over: "):
        load_state(model(16, None, layers=2).state_dict(), target, Path("x"), new_readout=True)


def test_a_run_is_opened_whatever_it_was_trained_with(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(
        config.replace("name: cpu", "name: cuda:7").replace("schedule: cosine", "schedule: gone")
    )
    assert config != (copy / "config.yaml").read_text()
    assert read_run(copy).cell == read_run(run).cell
    assert load_model(copy, CPU).model.vocab_size == read_model_spec(run).vocab_size
