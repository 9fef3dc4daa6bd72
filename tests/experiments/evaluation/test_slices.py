"""Slices of a text: they are what brute force finds, and they add up to a score that they do not change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archbench.architectures.backbones.block_diffusion import BlockDiffusion as BlockDiffusionBackbone
from archbench.architectures.backbones.block_diffusion import (
    BlockDiffusionConfig as BlockDiffusionBackboneConfig,
)
from archbench.experiments.evaluation.measure import EVALUATION_SEED, measure
from archbench.experiments.evaluation.shard import EvaluationShard
from archbench.experiments.evaluation.slices import (
    RECALL_BYTES,
    TokenSlices,
    frequency_bands,
    longest_repeats,
)
from archbench.experiments.objectives.diffusion.block_diffusion import BlockDiffusion, BlockDiffusionConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.language_modelling.denoising import Denoising, DenoisingConfig
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.language_modelling.prefix_lm import (
    CausalPrefixLM,
    PrefixLM,
    PrefixLMConfig,
)
from archbench.experiments.objectives.language_modelling.sentence_pairs import (
    SentencePairs,
    SentencePairsConfig,
)
from archbench.experiments.objectives.language_modelling.span_corruption import (
    SpanCorruption,
    SpanCorruptionConfig,
)
from archbench.experiments.objectives.language_modelling.ul2 import UL2, UL2Config
from archbench.experiments.objectives.objective import Objective, Score
from archbench.experiments.tasks.metrics import Metric
from archbench.experiments.tasks.text.text import Text, TextConfig
from tests.experiments import commands
from tests.experiments.objectives import toys

WINDOW, STRIDE = 24, 8
WORDS = (
    "The value of x is 12. See also f(x), the value of y.\n    return x == 12\nIt is the value of the value. "
)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Text:
    folder = tmp_path_factory.mktemp("text")
    for split in ("train", "validation", "test"):
        for part in range(3):
            (folder / f"{split}_{part}.txt").write_text(f"{split} {part}. {WORDS}")
    return Text(
        TextConfig(
            source="files",
            paths=[f"{folder}/train_*.txt"],
            validation_paths=[f"{folder}/validation_*.txt"],
            test_paths=[f"{folder}/test_*.txt"],
            sequence_length=WINDOW,
            stride=STRIDE,
            cache_dir=str(folder / "cache"),
        )
    )


def longest_by_search(tokens: list[int], place: int, most: int) -> int:
    """The longest n-gram that ends at ``place`` and stands earlier, by comparing all of them."""
    longest = 1
    for earlier in range(place):
        n = 0
        while n <= earlier and tokens[earlier - n] == tokens[place - n]:
            n += 1
        longest = max(longest, n)
    return max(n for n in (1, 2, 4, 8, 16) if n <= min(longest, most))


@pytest.mark.parametrize(("symbols", "length", "most"), [(2, 40, 16), (3, 33, 8), (9, 60, 16), (4, 3, 16)])
def test_repeats_are_those_that_a_search_finds(symbols: int, length: int, most: int) -> None:
    tokens_BT = toys.random_text(5, length, symbols, seed=length).tokens_BT
    tokens_BT[1] = tokens_BT[0]  # rows do not see each other
    found_BT = longest_repeats(tokens_BT, most).tolist()
    for tokens, found in zip(tokens_BT.tolist(), found_BT, strict=True):
        assert found == [longest_by_search(tokens, place, most) for place in range(length)]


def test_repeats_by_hand() -> None:
    #                        a  b  c  a  b  c  a  a  a
    tokens_BT = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 0, 0], [2, 2, 2, 2, 1, 2, 1, 0, 2]])
    assert longest_repeats(tokens_BT, 2).tolist() == [
        [1, 1, 1, 1, 2, 2, 2, 1, 2],
        [1, 1, 2, 2, 1, 1, 2, 1, 1],
    ]
    assert longest_repeats(tokens_BT, 4).tolist()[0] == [1, 1, 1, 1, 2, 2, 4, 1, 2]


def test_frequencies_are_bands_of_the_training_text() -> None:
    count_V = np.array([5, 45, 400, 50, 500, 0])
    assert frequency_bands(count_V).tolist() == [3, 2, 1, 2, 0, 3]


Build = Callable[[Text], Objective]
OBJECTIVES: dict[str, tuple[Build, str]] = {
    "causal_lm": (lambda task: CausalLM(CausalLMConfig(), task), "decoder"),
    "prefix_lm": (lambda task: PrefixLM(PrefixLMConfig(), task), "encoder_decoder"),
    "causal_prefix_lm": (lambda task: CausalPrefixLM(PrefixLMConfig(), task), "decoder"),
    "ul2": (lambda task: UL2(UL2Config(), task), "encoder_decoder"),
    "masked_lm": (lambda task: MaskedLM(MaskedLMConfig(), task), "encoder"),
    "all_positions": (lambda task: MaskedLM(MaskedLMConfig(evaluation_positions=None), task), "encoder"),
    "sentence_pairs": (lambda task: SentencePairs(SentencePairsConfig(), task), "encoder"),
    "span_corruption": (
        lambda task: SpanCorruption(SpanCorruptionConfig(evaluation_samples=2), task), "encoder_decoder"
    ),
    "denoising": (lambda task: Denoising(DenoisingConfig(), task), "encoder_decoder"),
    "masked_diffusion": (lambda task: MaskedDiffusion(MaskedDiffusionConfig(), task), "masked_diffusion"),
    "by_time": (
        lambda task: MaskedDiffusion(MaskedDiffusionConfig(estimator="time"), task), "masked_diffusion"
    ),
    "block_diffusion": (lambda task: BlockDiffusion(BlockDiffusionConfig(), task), "block_diffusion"),
}  # fmt: skip


def metrics_of(name: str, task: Text, *, by_slice: bool, examples: int | None = None) -> list[Metric]:
    build, backbone = OBJECTIVES[name]
    objective = build(task)
    if backbone == "block_diffusion":
        torch.manual_seed(0)
        blocks = BlockDiffusionBackboneConfig(d_model=16, block_length=4)
        model = BlockDiffusionBackbone(blocks, vocab_size=task.vocabulary.size, max_length=64).double()
    else:
        model = toys.build(backbone, task.vocabulary.size)
    if (readout := objective.make_readout(model)) is not None:
        model.attach_readout(readout.double())
    return measure(
        model, objective, task, "test", examples=examples, batch_size=7, precision="fp32", by_slice=by_slice
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_slices_add_up_to_a_score_that_they_leave_as_it_is(name: str, task: Text) -> None:
    """To the last digit, standard errors and all."""
    plain, sliced = (metrics_of(name, task, by_slice=by_slice) for by_slice in (False, True))
    assert [asdict(replace(metric, slices=None)) for metric in sliced] == [asdict(metric) for metric in plain]
    slices = sliced[0].slices
    assert slices
    totals = []
    for by in ("recall", "repeat", "position", "frequency", "kind"):
        own = [s for s in slices if s.by == by]
        bits, tokens, num_bytes = (
            sum(getattr(s, field) for s in own) for field in ("bits", "tokens", "bytes")
        )
        assert bits / num_bytes == pytest.approx(plain[0].value, rel=1e-12)
        totals.append((pytest.approx(bits), pytest.approx(tokens), pytest.approx(num_bytes)))
        for s in own:
            sums = np.array(s.cluster_totals).sum(0)
            assert sums == pytest.approx([s.bits, s.tokens], abs=0.01 * len(s.cluster_totals))
            assert len(s.cluster_totals) == plain[0].clusters == 3
    assert all(total == totals[0] for total in totals)


@pytest.mark.parametrize("name", ["causal_lm", "all_positions", "masked_lm", "masked_diffusion"])
def test_the_tokens_of_all_slices_are_the_scored_ones(name: str, task: Text) -> None:
    """An estimator's weights make up for the tokens that it does not draw."""
    slices = metrics_of(name, task, by_slice=True)[0].slices
    assert slices is not None
    batch = task.batch("test", EVALUATION_SEED, 0, task.num_examples("test"))
    unscored = 3 if "end of document" not in {s.name for s in slices} else 0  # of a masked LM
    tokens = sum(s.tokens for s in slices if s.by == "repeat")
    assert tokens == pytest.approx(int(batch.answer_BT.sum()) - unscored, rel=1e-6)


def causal_nats(task: Text, tokens_BT: Tensor) -> Tensor:
    """The loss of each token under the decoder, by hand."""
    model = toys.build("decoder", task.vocabulary.size).eval()
    begin_B1 = torch.full_like(tokens_BT[:, :1], task.vocabulary.bos)
    with torch.no_grad():
        logits_BTV = model(torch.cat([begin_B1, tokens_BT[:, :-1]], 1)).logits_BTV
    return -logits_BTV.log_softmax(-1).gather(-1, tokens_BT[..., None])[..., 0]


def test_slices_of_a_causal_model_by_search(task: Text) -> None:
    """Bits and tokens of every slice of recall, repeats and position, token by token."""
    batch = task.batch("test", EVALUATION_SEED, 0, task.num_examples("test"))
    bits_BT = causal_nats(task, batch.tokens_BT) / math.log(2)
    expected: dict[tuple[str, str], list[float]] = {}
    names = {1: "nothing", 2: "2 or 3", 4: "4 to 7", 8: "8 to 15", 16: "16 or more"}
    for row, tokens in enumerate(batch.tokens_BT.tolist()):
        for place in batch.answer_BT[row].nonzero().flatten().tolist():
            n = longest_by_search(tokens, place, 16)
            begin = max(b for b in (0, 16, 18, 20, 22) if b <= place)
            words = "repeats 8 bytes" if n >= RECALL_BYTES else "repeats fewer than 8 bytes"
            stretch = "0 to 15" if begin == 0 else f"{begin} to {begin + 1}"
            for key in (("recall", words), ("repeat", names[n]), ("position", stretch)):
                expected.setdefault(key, []).append(bits_BT[row, place].item())
    slices = metrics_of("causal_lm", task, by_slice=True)[0].slices
    assert slices is not None
    found = {(s.by, s.name): s for s in slices if s.by in ("recall", "repeat", "position")}
    assert found.keys() == expected.keys()
    for key, bits in expected.items():
        assert found[key].tokens == len(bits)
        assert found[key].bits == pytest.approx(sum(bits), rel=1e-5)


def test_a_sample_of_the_split_has_slices_of_what_was_sampled(task: Text) -> None:
    metric = metrics_of("causal_lm", task, by_slice=True, examples=5)[0]
    assert metric.slices is not None
    own = [s for s in metric.slices if s.by == "kind"]
    assert sum(s.bits for s in own) / sum(s.bytes for s in own) == pytest.approx(metric.value, rel=1e-12)


def test_a_trained_vocabulary_recalls_from_two_tokens_on(task: Text, tmp_path: Path) -> None:
    tokenizer = replace(task.config.tokenizer, kind="bpe", vocab_size=270)
    pieces = Text(replace(task.config, tokenizer=tokenizer, cache_dir=str(tmp_path)))
    assert TokenSlices(pieces).groupings[0].names == ("repeats fewer than 2 tokens", "repeats 2 tokens")
    assert TokenSlices(task).groupings[0].names == ("repeats fewer than 8 bytes", "repeats 8 bytes")


def test_windows_side_by_side_are_cut_in_four(task: Text) -> None:
    aside = Text(replace(task.config, stride=None))
    assert TokenSlices(aside).groupings[2].names == ("0 to 5", "6 to 11", "12 to 17", "18 to 23")
    assert TokenSlices(task).groupings[2].names == ("0 to 15", "16 to 17", "18 to 19", "20 to 21", "22 to 23")


def test_processes_that_share_an_evaluation_add_their_slices(
    task: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has zeros where the other scores, so that the sum that all_reduce makes is the whole."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda *_: None)
    slices, objective = TokenSlices(task), CausalLM(CausalLMConfig(), task)
    model = toys.build("decoder", task.vocabulary.size)

    def score(first: int, end: int) -> list[Score]:
        batch = task.batch("test", EVALUATION_SEED, first, end - first)
        found = objective.evaluate(model, batch, toys.generators(end - first))
        assert found.by_token is not None
        texts = task.window_texts("test", EVALUATION_SEED, first, end - first)
        return [replace(found, by_token=None, slices_BK=slices.sums(batch, found.by_token, texts))]

    (alone,) = score(0, 9)
    (one,), (other,) = (
        EvaluationShard(index=i, of=2).map_examples(nn.Identity(), score, 0, 9) for i in (0, 1)
    )
    for whole, *parts in zip(*map(fields_of, (alone, one, other)), strict=True):
        assert parts[0].shape == whole.shape
        torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-6, atol=0)


def fields_of(score: Score) -> list[Tensor]:
    """The numbers of a score."""
    found = [score.nats_B, score.bytes_B, score.slices_BK]
    return [x for x in found if x is not None]


def test_a_run_records_the_slices_of_its_test_score_alone(tmp_path: Path) -> None:
    folder = commands.train(
        "backbone=decoder", *commands.SHORT_TEXT, *commands.TINY, f"runs={tmp_path}",
        "trainer.extra_evaluations=['sequence_length=32']",
    )  # fmt: skip
    result = commands.result(folder)
    metrics: list[dict[str, Any]] = [*result["metrics"], *result["validation"]]
    first, others = metrics[0], metrics[1:]
    assert {s["by"] for s in first["slices"]} == {"recall", "repeat", "position", "frequency", "kind"}
    own = [s for s in first["slices"] if s["by"] == "recall"]
    assert sum(s["bits"] for s in own) / sum(s["bytes"] for s in own) == pytest.approx(first["value"])
    assert [metric["slices"] for metric in others] == [None, None]
