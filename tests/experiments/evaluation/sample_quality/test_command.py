"""Quality of samples: the statistics by hand, and the command as a person gives it."""

import csv
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.evaluation.sample_quality.__main__ import SampleQualityConfig, sample_quality
from archbench.experiments.evaluation.sample_quality.statistics import distinct, judged, token_entropy
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.errors import ConfigError, DataError
from tests.experiments import commands

CPU = DeviceConfig(name="cpu")


def test_statistics_by_hand() -> None:
    mean, error = token_entropy([[1, 1, 2, 2], [3, 3, 3], [1, 2, 3, 4]])
    values = [math.log(2), 0.0, math.log(4)]
    assert mean == pytest.approx(sum(values) / 3)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    assert error == pytest.approx(spread / math.sqrt(3))
    assert distinct([[1, 1, 2], [1, 1]], 1) == 2 / 5
    assert distinct([[1, 1, 2], [1, 1]], 2) == 2 / 3
    assert distinct([[1, 1, 2], [1, 1]], 4) == 0
    assert token_entropy([[], [5]])[0] == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = f"runs={tmp_path_factory.mktemp('runs')}"
    names = ("decoder", "masked_diffusion")
    return {n: commands.train(f"backbone={n}", *commands.SHORT_TEXT, *commands.TINY, folder) for n in names}


def test_the_judge_reads_each_text_from_its_beginning(runs: dict[str, Path]) -> None:
    judge = load_model(runs["decoder"], torch.device("cpu"))
    texts = ["def f(x):", "", "é" * 50, "the "]  # the third is longer than the judge's context
    found = judged(judge, texts, CPU, batch_size=2)
    nats = tokens = 0.0
    for text in texts:
        ids = list(text.encode())
        for start in range(0, len(ids), judge.model.max_length):
            piece = ids[start : start + judge.model.max_length]
            read = torch.tensor([[judge.task.vocabulary.bos, *piece]])
            with torch.no_grad():
                log_p_TV = judge.model(read[:, :-1]).logits_BTV[0].log_softmax(-1)
            nats -= log_p_TV[range(len(piece)), piece].sum().item()
            tokens += len(piece)
    assert judge.model.max_length < 100
    assert found.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(nats / tokens / math.log(2), rel=1e-4)
    assert found.perplexity_error > 0
    with pytest.raises(DataError, match="every text is empty"):
        judged(judge, ["", ""], CPU, batch_size=2)


WORDS = ("device=cpu", "num_samples=6", "batch_size=4", "length=20")


def ask(runs: dict[str, Path], writer: str, judge: str, *words: str) -> None:
    cfg = commands.compose(
        f"run={runs[writer]}", f"judge={runs[judge]}", *WORDS, *words, root="sample_quality"
    )
    sample_quality(cfg)


def test_one_row_for_each_number_of_steps_and_one_of_real_text(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "quality"
    words = ("steps=[2,5,20]", "filling.method=ancestral", "stop=[]", f"output={out}")
    ask(runs, "masked_diffusion", "decoder", *words)
    said = capsys.readouterr().out
    assert "ancestral" in said
    assert f"judge: {runs['decoder']}" in said
    with (out / "quality.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["steps"] for row in rows] == ["2", "5", "20", ""]
    assert [row["text"] for row in rows] == ["samples"] * 3 + ["real"]
    passes = [float(row["passes"]) for row in rows[:3]]
    assert passes[0] == 2
    assert passes[0] < passes[1] <= 5
    assert passes[1] < passes[2] <= 20
    assert all(float(row["tokens_per_second"]) > 0 for row in rows[:3])
    assert all(int(row["tokens"]) == 120 for row in rows)
    assert all(float(row["perplexity"]) > 1 and float(row["entropy"]) > 0 for row in rows)
    assert float(rows[3]["perplexity"]) < float(rows[0]["perplexity"])  # real text is likelier
    assert "plotly" in (out / "quality.html").read_text()


def test_a_left_to_right_model_has_one_row_and_low_temperature_less_entropy(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    entropy = []
    for temperature in (1.0, 0.1):
        out = tmp_path / str(temperature)
        ask(runs, "decoder", "decoder", f"sampling.temperature={temperature}", f"output={out}", "stop=[]")
        with (out / "quality.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["text"] for row in rows] == ["samples", "real"]
        assert float(rows[0]["passes"]) == 20
        entropy.append(float(rows[0]["entropy"]))
    assert entropy[1] < entropy[0]


@pytest.mark.parametrize(
    ("writer", "judge", "words", "message"),
    [
        ("decoder", "masked_diffusion", (), "only a causal model"),
        ("masked_diffusion", "decoder", ("steps=[]",), "steps="),
        ("masked_diffusion", "decoder", ("filling.steps=3",), r"give steps=\[...\] instead"),
        ("decoder", "decoder", ("filling.method=ancestral",), "writes from left to right"),
        ("masked_diffusion", "decoder", ("num_samples=1",), "num_samples=1"),
    ],
)
def test_what_cannot_be_is_refused(
    runs: dict[str, Path], writer: str, judge: str, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(runs, writer, judge, *words)


def test_the_yaml_lists_all_that_can_be_set() -> None:
    cfg = commands.compose("run=x", "judge=y", root="sample_quality")
    config = SampleQualityConfig(run="x", judge="y")
    assert OmegaConf.to_container(cfg) == {**dataclasses.asdict(config), "device": cfg.device}
