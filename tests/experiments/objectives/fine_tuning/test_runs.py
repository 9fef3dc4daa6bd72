"""Readouts, labels and pairs of texts through the real trainer, on data that is soon learned."""

import random
from pathlib import Path

import pytest
from safetensors.torch import load_file

from archbench.experiments.runtime.errors import ConfigError
from tests.experiments import commands

SMALL = (
    "backbone=encoder",
    "scale.axis=non_embedding",
    "scale.targets.non_embedding=20000",
    "budget.batch_size=16",
    "device=cpu",
    "device.threads=1",
    "trainer.validation_examples=8",
    "trainer.test_examples=64",
)


def trained(tmp_path: Path, *words: str) -> tuple[Path, dict[str, float]]:
    """The run folder, and its test metrics by name, the table's first."""
    folder = commands.train(*SMALL, *words, f"runs={tmp_path / 'runs'}")
    found = commands.result(folder)
    assert found["status"] == "complete"
    return folder, {metric["name"]: metric["value"] for metric in found["metrics"]}


def test_a_classifier_of_texts_from_a_file_learns(tmp_path: Path) -> None:
    rng = random.Random(0)
    lines = ["text\tlabel"]
    for _ in range(600):
        label = rng.choice(["dull", "fine"])
        word = {"dull": "zzz", "fine": "aha"}[label]
        words = [rng.choice(["the", "film", "was", "long", "seen"]) for _ in range(4)]
        lines.append(" ".join([*words[:2], word, *words[2:]]) + "\t" + label)
    (tmp_path / "films.tsv").write_text("\n".join(lines) + "\n")
    folder, metrics = trained(
        tmp_path,
        *("objective=sequence_classification", "task=sentences", "task.source=files", "task.metric=matthews"),
        *(f"task.paths=[{tmp_path / 'films.tsv'}]", "task.sequence_length=40", "budget.tokens=40_000"),
    )
    assert list(metrics) == ["matthews", "accuracy", "macro_f1"]
    assert metrics["accuracy"] > 0.9
    assert metrics["matthews"] > 0.8
    record = commands.result(folder)
    width = record["widths"]["d_model"]
    readout = width * width + width + 2 * width + 2
    assert record["parameters"]["head"] == readout + width * 288  # with the projection to the vocabulary
    stored = load_file(commands.newest_checkpoint(folder) / "model.safetensors")
    assert stored["readout.classifier.weight"].shape == (2, width)
    validated = [row for row in commands.rows(folder) if row["kind"] == "validation"]
    assert {"matthews", "accuracy", "macro_f1"} <= set(validated[-1])


def test_a_tagger_finds_invented_names_by_their_surroundings(tmp_path: Path) -> None:
    folder, metrics = trained(tmp_path, "objective=token_classification", "task=tags", "budget.tokens=90_000")
    (dictionary,) = commands.result(folder)["references"]
    assert dictionary["metric"] == next(iter(metrics)) == "entity_f1"
    assert metrics["entity_f1"] > dictionary["value"] + 0.2
    assert metrics["tag_accuracy"] > 0.8


def test_similarity_is_learned(tmp_path: Path) -> None:
    folder, metrics = trained(tmp_path, "objective=similarity", "task=similarity", "budget.tokens=90_000")
    assert metrics["spearman"] > 0.5  # untrained models are near 0.35
    losses = [row["loss"] for row in commands.rows(folder) if row["kind"] == "train"]
    assert losses[-1] < 0.1 < 0.125  # 0.125 is the variance of the scores: what a constant reaches


def test_text_is_learned_in_pairs_and_the_record_has_both_halves_of_the_objective(tmp_path: Path) -> None:
    for letter in "abcdefgh":
        for kind, words in (("txt", 400), ("md", 401)):  # no text may be both trained and tested on
            (tmp_path / f"{letter}.{kind}").write_text(f"{letter * 3} " * words)
    files, held_out = (
        ",".join(str(tmp_path / f"{letter}.{kind}") for letter in "abcdefgh") for kind in ("txt", "md")
    )
    folder, metrics = trained(
        tmp_path,
        *("objective=sentence_pairs", "objective.question=next", "backbone.embedding.num_segments=2"),
        *("task=text", "task.source=files", f"task.paths=[{files}]", f"task.test_paths=[{held_out}]"),
        *(f"task.validation_paths=[{held_out}]", "task.sequence_length=32", "budget.tokens=30_000"),
        f"task.cache_dir={tmp_path / 'cache'}",
    )
    assert list(metrics) == ["bits_per_byte", "pseudo_perplexity", "pair_accuracy"]
    assert metrics["bits_per_byte"] < 2  # of 8 at the beginning
    assert metrics["pseudo_perplexity"] == pytest.approx(2 ** metrics["bits_per_byte"], rel=1e-6)
    assert 0 <= metrics["pair_accuracy"] <= 1
    kinds = {metric["name"]: metric["likelihood"] for metric in commands.result(folder)["metrics"]}
    assert kinds == {"bits_per_byte": "pseudo", "pseudo_perplexity": "pseudo", "pair_accuracy": None}
    stored = load_file(commands.newest_checkpoint(folder) / "model.safetensors")
    assert any(name.startswith("readout.pooler") for name in stored)
    assert any("segments" in name for name in stored)


def test_micro_batches_change_nothing(tmp_path: Path) -> None:
    words = (*SMALL, "objective=similarity", "task=similarity", "budget.tokens=4_000", "trainer.log_every=1")
    runs = [
        commands.train(*words, f"runs={tmp_path / name}", *more)
        for name, more in (("whole", ()), ("parts", ("budget.micro_batch_size=5",)))
    ]
    once, parts = ([row for row in commands.untimed(run) if row["kind"] == "train"] for run in runs)
    for whole, added in zip(once, parts, strict=True):
        assert added["loss"] == pytest.approx(whole["loss"], rel=1e-4)


def test_two_texts_cost_two_passes(tmp_path: Path) -> None:
    found = commands.settings(*SMALL, "objective=similarity", "task=similarity")
    from archbench.experiments.run.plan import plan

    planned = plan(found)
    model = planned.sizes.on_meta(found.backbone_class, planned.matched.config)
    forward = model.sequence_flops(planned.sizes.length).total
    assert planned.sizes.passes == 2
    assert planned.cost.flops_per_token == pytest.approx(3 * 2 * forward / 64)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("task=tags", "objective=sequence_classification"),
            "task has tags.*Tasks for this.*: sentences",
        ),
        (("backbone=encoder", "task=sentences", "objective=masked_lm"), "the task has classes"),
        (("backbone=encoder", "task=recall", "objective=sentence_pairs"), "no text to cut in two.*text"),
        (("backbone=encoder_decoder", "task=tags", "objective=token_classification"), "needs a causal or"),
        (("backbone=mamba", "task=text", "objective=sentence_pairs"), "needs a bidirectional"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_does(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        commands.settings(*words)
