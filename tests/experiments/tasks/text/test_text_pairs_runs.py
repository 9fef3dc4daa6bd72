"""Pairs through the whole harness: training, validation, generation, the record."""

import pytest

from tests.experiments import commands

PAIRS = (
    "task=pairs",
    "objective=seq2seq",
    "task.tokenizer.kind=bpe",
    "task.tokenizer.vocab_size=400",
    "task.max_source=24",
    "task.max_target=24",
    "task.metric=bleu",
)
METRICS = ["bleu", "bits_per_byte", "rouge_1", "rouge_2", "rouge_l", "exact_match"]


@pytest.mark.parametrize("backbone", ["encoder_decoder", "decoder", "mamba"])
def test_every_backbone_that_writes_is_tested_by_the_texts_it_writes(backbone, tmp_path):
    folder = commands.train(f"backbone={backbone}", *PAIRS, *commands.TINY, f"runs={tmp_path}")
    result = commands.result(folder)
    assert [metric["name"] for metric in result["metrics"]] == METRICS
    assert {metric["items"] for metric in result["metrics"]} == {8}
    assert result["metrics"][1]["likelihood"] == "conditional"
    assert [reference["metric"] for reference in result["references"]] == ["bleu"]
    validated = [row for row in commands.rows(folder) if row["kind"] == "validation"]
    assert validated
    assert set(METRICS) <= set(validated[-1])


def test_a_translation_is_learned(tmp_path):
    """A hundred and twenty steps of a small model: far above what copying or guessing reaches."""
    folder = commands.train(
        "backbone=decoder",
        *PAIRS,
        *commands.TINY,
        "scale.axis=non_embedding",
        "scale.targets.non_embedding=60000",
        "budget.tokens=192000",
        "budget.batch_size=32",
        "optimizer.learning_rate=5e-3",
        "trainer.test_examples=32",
        f"runs={tmp_path}",
    )
    scores = {metric["name"]: metric["value"] for metric in commands.result(folder)["metrics"]}
    assert scores["bleu"] > 5
    assert scores["bits_per_byte"] < 1.5


@pytest.mark.parametrize(
    "words",
    [
        ("objective=denoising", "objective.pieces=3"),
        ("objective=prefix_lm",),
        ("objective=ul2",),
        ("objective=span_corruption", "task.sequence_length=70", "objective.source_length=64"),
    ],
    ids=lambda words: words[0],
)
def test_objectives_of_encoder_decoders_train_on_text(words, tmp_path):
    folder = commands.train(
        "backbone=encoder_decoder",
        "task=text",
        "task.sequence_length=64",
        *words,
        *commands.TINY,
        f"runs={tmp_path}",
    )
    metric = commands.result(folder)["metrics"][0]
    assert metric["name"] == "bits_per_byte"
    kinds = {"objective=prefix_lm": "conditional", "objective=ul2": "conditional"}
    assert metric["likelihood"] == kinds.get(words[0], "pseudo")
