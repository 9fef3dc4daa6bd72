"""Masked and block diffusion through the whole harness: pairs, schedules, time, and text made of them."""

import json
from pathlib import Path

import pytest
import torch

from archbench.architectures.backbones.encoder import Encoder
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion as MaskedDiffusionBackbone
from archbench.experiments.config.hydra_overrides import literal
from archbench.experiments.evaluate import evaluate
from archbench.experiments.generate import generate
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM
from archbench.experiments.run.load_model import load_model, usual_objective
from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

PAIRS = (
    "task=pairs",
    "task.tokenizer.kind=bpe",
    "task.tokenizer.vocab_size=400",
    "task.max_source=24",
    "task.max_target=15",
)
METRICS = ["bits_per_byte", "bleu", "rouge_1", "rouge_2", "rouge_l", "exact_match"]
OBJECTIVES = {
    "masked_diffusion": "masked_diffusion",
    "block_diffusion": "block_diffusion",
    "mamba_bidirectional": "masked_diffusion",
}
KINDS = dict.fromkeys(OBJECTIVES, "bound")


@pytest.mark.parametrize(
    "backbone",
    ["masked_diffusion", "block_diffusion", "mamba_bidirectional", "encoder_decoder"],
)
def test_pairs_compare_all_that_can_answer(backbone: str, tmp_path: Path) -> None:
    """Only the answer is noised, or predicted; each model then writes answers from the sources alone."""
    folder = commands.train(
        f"backbone={backbone}",
        f"objective={OBJECTIVES.get(backbone, 'seq2seq')}",
        *PAIRS,
        *commands.TINY,
        f"runs={tmp_path}",
    )
    metrics = commands.result(folder)["metrics"]
    assert sorted(metric["name"] for metric in metrics) == sorted(METRICS)
    assert metrics[0]["name"] == "bits_per_byte"
    assert metrics[0]["likelihood"] == KINDS.get(backbone, "conditional")
    assert 1 < metrics[0]["value"] < 9


def test_a_translation_is_learned_by_diffusion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred steps of a small model: the bound falls below what guessing letters costs."""
    folder = commands.train(
        "backbone=masked_diffusion",
        "objective=masked_diffusion",
        *PAIRS,
        *commands.TINY,
        "scale.axis=non_embedding",
        "scale.targets.non_embedding=60000",
        "budget.tokens=130000",
        "budget.batch_size=32",
        "optimizer.learning_rate=5e-3",
        f"runs={tmp_path}",
    )
    scores = {metric["name"]: metric["value"] for metric in commands.result(folder)["metrics"]}
    assert scores["bits_per_byte"] < 3
    saved = load_model(folder, torch.device("cpu"))
    answer = said(capsys, folder, "prompt=the cat sleeps", "filling.steps=4").strip()
    assert "the cat sleeps" not in answer
    words = ("examples=4", "path_likelihood=true", "filling.order=left_to_right")
    evaluate(commands.compose(f"run={folder}", "device=cpu", *words, root="evaluate"))
    assert "path_bits_per_byte" in capsys.readouterr().out
    batch = saved.task.batch("test", 0, 0, 4)
    view = saved.objective.view(batch, torch.Generator().manual_seed(0))
    source_BT = torch.nn.functional.pad(batch.valid_BT & ~batch.answer_BT, (0, 100))[
        :, : view.tokens_BT.shape[1]
    ]
    assert not (view.tokens_BT[source_BT] == saved.task.vocabulary.mask).any()
    assert (view.count_B == 16).all()  # the longest target and its end: an answer's length is not given away


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    more = {
        "masked_diffusion": (
            "backbone.time_embedding=true",
            "objective.noise.schedule=cosine",
            "objective.estimator=time",
        ),
        "block_diffusion": ("objective.block_length=8",),
        "encoder": ("objective=masked_diffusion", "objective.filling.method=ancestral"),
        "decoder": (),
        "any_order": ("backbone=encoder", "objective=any_order", "objective.estimator=permutation"),
        "uniform_diffusion": (
            "backbone=masked_diffusion",
            "backbone.time_embedding=true",
            "objective=uniform_diffusion",
        ),
    }
    folder = f"runs={tmp_path_factory.mktemp('runs')}"
    return {
        name: commands.train(
            *([] if words and words[0].startswith("backbone=") else [f"backbone={name}"]),
            *commands.SHORT_TEXT,
            *words,
            *commands.TINY,
            folder,
        )
        for name, words in more.items()
    }


def test_text_is_scored_with_a_bound_and_its_own_error(runs: dict[str, Path]) -> None:
    for name in ("masked_diffusion", "block_diffusion", "encoder", "any_order", "uniform_diffusion"):
        metrics = commands.result(runs[name])["metrics"]
        assert [metric["name"] for metric in metrics] == ["bits_per_byte", "estimator_error"]
        assert metrics[0]["likelihood"] == "bound"
        assert 0 < metrics[1]["value"] < 3
    assert (
        "Monte Carlo over stratified times"
        in commands.result(runs["masked_diffusion"])["metrics"][0]["estimator"]
    )
    for name, estimator in (("any_order", "random orders"), ("uniform_diffusion", "uniform noise")):
        assert estimator in commands.result(runs[name])["metrics"][0]["estimator"]
    found = commands.result(runs["block_diffusion"])
    assert found["metrics"][0]["estimator"].endswith("blocks of 8")
    assert found["widths"]["block_length"] == 8
    assert found["state_bytes_2k"] > 0


def said(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> str:
    capsys.readouterr()
    generate(commands.composed_with("generate", {"run": str(run)}, *literal([*words]), "device=cpu"))
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["masked_diffusion", "block_diffusion", "encoder"])
def test_text_is_written_as_asked(
    runs: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("prompt=def", "max_tokens=16", "stop=[]", "seed=1")
    ways = [
        (),
        ("filling.steps=2",),
        ("filling.method=first_hitting",),
        ("filling.method=ancestral", "filling.remasking=capped", "filling.remasking_rate=0.1"),
        ("filling.order=entropy", "filling.threshold=0.5") if name != "encoder" else ("filling.steps=9",),
    ]
    texts = [said(capsys, runs[name], *words, *way) for way in ways]
    assert all(text.startswith("def") for text in texts)
    assert texts[0] == said(capsys, runs[name], *words)
    assert len(set(texts)) > 3


def test_text_of_uniform_noise_is_written_as_asked(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("prompt=def", "max_tokens=16", "stop=[]", "seed=1", "filling.steps=4")
    text = said(capsys, runs["uniform_diffusion"], *words)
    assert text.startswith("def")
    assert text == said(capsys, runs["uniform_diffusion"], *words)
    assert said(capsys, runs["uniform_diffusion"], "prompt=a_c", "blank=_")[0] == "a"


def test_blanks_of_a_prompt_are_filled_in(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, runs["encoder"], "prompt=a_c_e", "blank=_")
    assert text.encode()[0:1] == b"a"
    assert text.rstrip("\n").endswith("e")
    assert "c" in text
    several = said(capsys, runs["encoder"], "prompt=['a_c', '_']", "blank=_", "num_samples=2")
    assert several.count(" of 4 ---") == 4


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("decoder", ["filling.steps=3"], r"filling.steps: .* writes from left to right"),
        ("decoder", ["blank=_"], "fills in no blanks"),
        ("masked_diffusion", ["filling.method=ancestrall"], "did you mean 'ancestral'"),
        ("block_diffusion", ["filling.guidance=1"], "block diffusion takes"),
        ("masked_diffusion", ["filling.steps=0"], r"filling.steps=0"),
        ("encoder", ["filling.remasking=capped"], r"filling.remasking_rate=None must be in \(0, 1\]"),
        ("encoder", ["filling.remasking_loop=[1]", "filling.remasking=capped"], "filling.remasking_"),
        ("masked_diffusion", ["blank=''"], "must be a piece of text"),
        ("uniform_diffusion", ["filling.order=random"], "has only filling.steps"),
    ],
)
def test_what_cannot_be_is_refused(runs: dict[str, Path], name: str, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(commands.compose(f"run={runs[name]}", "prompt=a_c", "device=cpu", *words, root="generate"))


def test_the_exact_likelihood_of_a_sampler_is_a_score_of_another_name(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scores.json"
    words = ("examples=4", "path_likelihood=true", "filling.order=entropy", "filling.steps=8")
    more = ("device=cpu", "filling.method=confidence")
    evaluate(commands.compose(f"run={runs['encoder']}", f"output={file}", *words, *more, root="evaluate"))
    metrics = json.loads(file.read_text())["metrics"]
    names = ["bits_per_byte", "estimator_error", "path_bits_per_byte"]
    assert [metric["name"] for metric in metrics] == names
    assert [metric["likelihood"] for metric in metrics] == ["bound", "bound", "exact"]
    assert metrics[2]["clustered_by"] == metrics[0]["clustered_by"]
    assert metrics[2]["value"] == pytest.approx(metrics[0]["value"], rel=0.3)
    assert "exact likelihood, along the path of a sampler (entropy, 8 steps)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("decoder", [], "was not trained by masked_diffusion"),
        ("block_diffusion", [], "was not trained by masked_diffusion"),
        ("uniform_diffusion", [], "was not trained by masked_diffusion"),
        ("masked_diffusion", [], r"filling.order=low_confidence selects positions by chance"),
        ("masked_diffusion", ["filling.order=sure"], "filling.order='sure' is unknown"),
        (
            "masked_diffusion",
            ["text=x.txt"],
            "examples, path_likelihood: for a task",
        ),
    ],
)
def test_an_exact_likelihood_that_does_not_exist_is_refused(
    runs: dict[str, Path], name: str, words: list[str], message: str
) -> None:
    given = (f"run={runs[name]}", "device=cpu", "examples=4", "path_likelihood=true")
    with pytest.raises(ConfigError, match=message):
        evaluate(commands.compose(*given, *words, root="evaluate"))


def test_a_folder_of_a_diffusion_model_is_asked_as_one() -> None:
    task = commands.task(*commands.SHORT_TEXT)
    assert type(usual_objective(MaskedDiffusionBackbone.capabilities, task)) is MaskedDiffusion
    assert type(usual_objective(Encoder.capabilities, task)) is MaskedLM


def test_a_time_embedding_wants_an_objective_with_a_time() -> None:
    words = ("backbone=masked_diffusion", "backbone.time_embedding=true", "task=text")
    assert commands.settings(*words).backbone.time_embedding  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="objective=masked_lm has no time to tell"):
        commands.settings(*words, "objective=masked_lm")


def test_blocks_of_another_length_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be the same"):
        commands.train(
            "backbone=block_diffusion",
            "backbone.block_length=2",
            *commands.SHORT_TEXT,
            *commands.TINY,
            f"runs={tmp_path}",
        )
