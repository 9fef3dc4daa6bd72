import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from archbench.architectures.backbone import Backbone, BackboneConfig, Flops, Output
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion as MaskedDiffusionBackbone
from archbench.architectures.backbones.masked_diffusion import (
    MaskedDiffusionConfig as MaskedDiffusionBackboneConfig,
)
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.evaluation.measure import measure, summarise
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.language_modelling.span_corruption import (
    SpanCorruption,
    SpanCorruptionConfig,
)
from archbench.experiments.objectives.objective import Score
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.metrics import ratio_standard_error
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from archbench.experiments.tasks.task import Batch, Task

CPU = {"precision": "fp32"}


def first_metric(*args, **kwargs):
    return measure(*args, **kwargs)[0]


class Bytes(Task):
    """Random bytes, the same for every seed; each token is one byte."""

    metric = "bits_per_byte"
    sequence_length = 24
    fingerprint = "bytes"

    def __init__(self, examples=20):
        self.vocabulary = Vocabulary(num_symbols=256, num_sentinels=28)
        self.examples = examples
        self.asked = []

    def batch(self, split, seed, start, count):
        assert start + count <= self.examples
        self.asked.append((split, seed))
        rng = np.random.default_rng(7)
        tokens_BT = torch.from_numpy(rng.integers(256, size=(self.examples, 24)))[start : start + count]
        ones_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        return Batch(
            tokens_BT=tokens_BT,
            context_BT=tokens_BT,
            answer_BT=ones_BT,
            valid_BT=ones_BT,
            bytes_BT=ones_BT.long(),
            whole=True,
        )

    def num_examples(self, split):
        return self.examples


class Uniform(Backbone):
    """All tokens equally likely."""

    Config = BackboneConfig

    def __init__(self, vocab_size):
        super().__init__(BackboneConfig(), vocab_size=vocab_size, max_length=64)
        self.scale = torch.nn.Parameter(torch.zeros(()))
        self.modes, self.shown = [], []

    def compute(self, inputs):
        self.modes.append((self.training, torch.is_grad_enabled()))
        self.shown.append(inputs.tokens_BT)
        logits_BTV = self.scale * torch.ones(*inputs.tokens_BT.shape, self.vocab_size)
        return Output(logits_BTV=logits_BTV, hidden_BTD=logits_BTV)

    def sequence_flops(self, length, source_length=0):
        return Flops()


TASK = Bytes()
OBJECTIVES = {
    "causal_lm": CausalLM(CausalLMConfig(), TASK),
    "masked_lm": MaskedLM(MaskedLMConfig(), TASK),
    "masked_diffusion": MaskedDiffusion(MaskedDiffusionConfig(), TASK),
    "span_corruption": SpanCorruption(SpanCorruptionConfig(), TASK),
}
MODELS = {
    "causal_lm": (Decoder, DecoderConfig(d_model=16)),
    "masked_lm": (MaskedDiffusionBackbone, MaskedDiffusionBackboneConfig(d_model=16)),
    "masked_diffusion": (MaskedDiffusionBackbone, MaskedDiffusionBackboneConfig(d_model=16)),
    "span_corruption": (EncoderDecoder, EncoderDecoderConfig(d_model=16)),
}


def model_for(name):
    cls, config = MODELS[name]
    torch.manual_seed(0)
    model = cls(config, vocab_size=TASK.vocabulary.size, max_length=64)
    with torch.no_grad():
        model.head.weight.mul_(30)
    return model


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("causal_lm", 288, "exact"),
        ("masked_lm", 288, "pseudo"),
        ("masked_diffusion", 287, "bound"),  # the mask token is never predicted
        ("span_corruption", 288, "pseudo"),
    ],
)
def test_a_uniform_model_needs_the_log_of_its_options_for_each_byte(name, options, kind):
    metric = first_metric(Uniform(288), OBJECTIVES[name], TASK, "test", examples=20, batch_size=8, **CPU)
    assert metric.value == pytest.approx(math.log2(options), rel=1e-6)
    assert metric.standard_error == pytest.approx(0, abs=1e-6)
    assert (metric.name, metric.unit, metric.direction) == ("bits_per_byte", "bits/byte", "lower")
    assert metric.likelihood == kind
    assert (metric.items, metric.split) == (20, "test")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_batch_size_changes_nothing(name):
    model, objective = model_for(name), OBJECTIVES[name]
    metrics = [
        first_metric(model, objective, TASK, "test", examples=20, batch_size=size, **CPU)
        for size in (20, 7, 1, 64)
    ]
    for other in metrics[1:]:
        assert other.value == pytest.approx(metrics[0].value, rel=1e-5)
        assert other.standard_error == pytest.approx(metrics[0].standard_error, rel=1e-3)
    assert metrics[0].standard_error > 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_is_the_same_whatever_was_drawn_before(name):
    model, values = model_for(name), set()
    for seed in range(3):
        torch.manual_seed(seed)
        torch.rand(seed)
        values.add(
            first_metric(model, OBJECTIVES[name], TASK, "test", examples=10, batch_size=5, **CPU).value
        )
        expected = torch.Generator().manual_seed(seed)
        torch.rand(seed, generator=expected)
        assert torch.rand(()) == torch.rand((), generator=expected)  # nor does it draw from the run's numbers
    assert len(values) == 1
    assert {seed for _, seed in TASK.asked} == {0}


def test_examples_have_their_own_masks():
    model = Uniform(288)
    first_metric(model, OBJECTIVES["masked_lm"], TASK, "test", examples=20, batch_size=20, **CPU)
    hidden_BT = model.shown[0] == TASK.vocabulary.mask
    assert hidden_BT.sum(1).tolist() == [1] * 20
    assert len(set(hidden_BT.int().argmax(1).tolist())) > 5


def test_splits_have_their_own_masks():
    model = model_for("masked_diffusion")
    values = {
        first_metric(
            model, OBJECTIVES["masked_diffusion"], TASK, split, examples=10, batch_size=5, **CPU
        ).value
        for split in ("validation", "test")
    }
    assert len(values) == 2  # the tokens are the same here


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was_and_without_gradients(training):
    model = Uniform(288).train(training)
    first_metric(model, OBJECTIVES["causal_lm"], TASK, "test", examples=4, batch_size=2, **CPU)
    assert model.modes == [(False, False)] * 2
    assert model.training is training
    assert torch.is_grad_enabled()
    assert model.scale.grad is None


def test_the_mode_is_restored_after_a_failure():
    model = Uniform(288)
    model.forward = None
    with pytest.raises(TypeError):
        first_metric(model, OBJECTIVES["causal_lm"], TASK, "test", examples=4, batch_size=2, **CPU)
    assert model.training
    assert torch.is_grad_enabled()


def test_bits_are_pooled_over_all_bytes():
    """Two bits over 1 byte and 4 over 9: 0.6 bits per byte, not the mean of 2 and 4/9."""
    nats = torch.tensor([2.0, 4.0]).double() * math.log(2)
    score = Score(nats_B=nats, bytes_B=torch.tensor([1.0, 9.0]).double())
    metric = summarise([score], OBJECTIVES["causal_lm"], "test")
    assert metric.value == pytest.approx(0.6)
    assert metric.standard_error == pytest.approx(0.28)  # residuals 1.4 and -1.4, over 10 bytes
    parts = [Score(nats_B=nats[i : i + 1], bytes_B=score.bytes_B[i : i + 1]) for i in range(2)]
    assert summarise(parts, OBJECTIVES["causal_lm"], "test") == summarise(
        [score], OBJECTIVES["causal_lm"], "test"
    )


def test_the_standard_error_of_a_ratio_agrees_with_the_bootstrap():
    rng = np.random.default_rng(0)
    length = rng.integers(20, 200, size=400)
    nats = length * rng.normal(1.5, 0.3, size=400) + 10
    score = Score(nats_B=torch.from_numpy(nats), bytes_B=torch.from_numpy(length).double())
    metric = summarise([score], OBJECTIVES["causal_lm"], "test")
    picks = rng.integers(400, size=(4000, 400))
    resampled = nats[picks].sum(1) / length[picks].sum(1) / math.log(2)
    assert metric.value == pytest.approx(nats.sum() / length.sum() / math.log(2))
    assert metric.standard_error == pytest.approx(resampled.std(), rel=0.06)


@pytest.mark.parametrize(("documents", "groups"), [(150, 150), (1500, 1000)])
def test_each_document_has_its_bits_and_bytes(documents: int, groups: int) -> None:
    document_N = torch.arange(3 * documents) % documents
    nats_N = math.log(2) * (1 + document_N).double()
    score = Score(nats_B=nats_N, bytes_B=torch.full_like(nats_N, 2), cluster_B=document_N)
    totals = summarise([score], OBJECTIVES["causal_lm"], "test").cluster_totals
    assert totals is not None
    assert len(totals) == groups
    assert totals[120] == pytest.approx([3 * 121, 6] if groups == documents else [3 * 121 + 3 * 1121, 12])


def test_accuracy_is_the_mean_over_examples_with_its_standard_error():
    score = Score(accuracy_B=torch.tensor([1.0, 0.5, 0.0, 1.0]).double())
    metric = summarise([score], OBJECTIVES["causal_lm"], "test")
    assert metric.value == 0.625
    assert metric.standard_error == pytest.approx(math.sqrt(0.6875 / 3) / 2)
    assert (metric.name, metric.unit, metric.direction) == ("answer_accuracy", "share", "higher")
    assert metric.likelihood is None


@pytest.mark.parametrize(("knows", "expected"), [(True, 1.0), (False, 0.25)])
def test_recall_is_solved_by_looking_up_and_not_by_guessing(knows, expected):
    """A model that reads the pairs, through the whole path of the evaluation."""
    task = Recall(RecallConfig(sequence_length=64, num_pairs=4, num_symbols=64))
    rng = torch.Generator().manual_seed(0)

    class Reader(Uniform):
        def compute(self, inputs):
            tokens_BT = inputs.tokens_BT
            keys_BK, values_BK = tokens_BT[:, 1:9:2], tokens_BT[:, 2:10:2]  # behind the begin token
            found_BT = (tokens_BT[:, :, None] == keys_BK[:, None]).int().argmax(-1)
            if not knows:
                found_BT = torch.randint(4, tokens_BT.shape, generator=rng)
            guess_BT = values_BK.gather(1, found_BT)
            logits_BTV = torch.nn.functional.one_hot(guess_BT, self.vocab_size).float()
            return Output(logits_BTV=logits_BTV, hidden_BTD=logits_BTV)

    model, objective = Reader(task.vocabulary.size), CausalLM(CausalLMConfig(), task)
    metric, bits = measure(model, objective, task, "test", examples=1000, batch_size=300, **CPU)
    assert metric.items == bits.items == 1000
    assert abs(metric.value - expected) <= 4 * metric.standard_error
    assert knows == (metric.standard_error == 0)
    # A logit of 1 at the guess and 0 elsewhere: log(V - 1 + e) nats, and one less where the guess is right.
    nats = math.log(task.vocabulary.size - 1 + math.e) - metric.value
    assert (bits.name, bits.unit, bits.direction) == ("bits_per_answer", "bits/answer", "lower")
    assert bits.value == pytest.approx(nats / math.log(2), rel=1e-6)
    assert bits.standard_error == pytest.approx(metric.standard_error / math.log(2), rel=1e-6, abs=1e-9)


def test_the_split_may_hold_fewer_examples_than_wanted_but_not_one():
    metric = first_metric(
        Uniform(288), OBJECTIVES["causal_lm"], Bytes(5), "test", examples=99, batch_size=3, **CPU
    )
    assert metric.items == 5
    with pytest.raises(DataError, match="test split has 1 examples"):
        first_metric(
            Uniform(288), OBJECTIVES["causal_lm"], Bytes(1), "test", examples=99, batch_size=3, **CPU
        )


def test_in_bfloat16_the_nats_are_still_added_in_full_precision():
    model, objective = model_for("causal_lm"), OBJECTIVES["causal_lm"]
    full = first_metric(model, objective, TASK, "test", examples=20, batch_size=20, precision="fp32")
    mixed = first_metric(model, objective, TASK, "test", examples=20, batch_size=20, precision="bf16")
    assert mixed.value != full.value
    assert mixed.value == pytest.approx(full.value, rel=0.02)


class Documents(Bytes):
    """Windows of 24 bytes whose documents are numbered."""

    def __init__(self, cluster):
        super().__init__(len(cluster))
        self.cluster = torch.tensor(cluster)
        self.stride = 12

    def batch(self, split, seed, start, count):
        batch = super().batch(split, seed, start, count)
        return replace(batch, cluster_B=self.cluster[start : start + count])

    def clustered_by(self, split):
        return "document"


def test_windows_of_a_document_are_one_cluster_of_the_standard_error():
    """Ten documents, each of four equal windows: the error of ten texts, not of forty."""
    model = model_for("causal_lm")
    task = Documents([number // 4 for number in range(40)])
    rows = {}
    for name, cluster in (("document", task.cluster), ("window", torch.arange(40))):
        task.cluster = cluster
        rows[name] = first_metric(
            model, CausalLM(CausalLMConfig(), task), task, "test", examples=None, batch_size=7, **CPU
        )
    found = rows["document"]
    assert (found.clusters, found.items, found.clustered_by) == (10, 40, "document")
    assert rows["window"].clusters == 40
    assert found.value == rows["window"].value
    assert (found.scored, found.available, found.window, found.stride) == ("whole split", 40, 24, 12)
    assert found.sampling_error == 0


@pytest.mark.filterwarnings("error")
def test_an_infinite_loss_has_no_standard_error():
    error, clusters = ratio_standard_error(np.array([1.0, np.inf]), np.ones(2), np.arange(2))
    assert np.isnan(error)
    assert clusters == 2


def test_the_error_of_clusters_is_that_of_their_totals():
    rng = np.random.default_rng(1)
    nats, length = rng.normal(30, 4, size=40), rng.integers(20, 30, size=40).astype(float)
    cluster = np.repeat(np.arange(10), 4)
    totals = [np.add.reduceat(x, np.arange(0, 40, 4)) for x in (nats, length)]
    alone = ratio_standard_error(totals[0], totals[1], np.arange(10))
    assert ratio_standard_error(nats, length, cluster) == (pytest.approx(alone[0]), 10)
    shuffled = rng.permutation(40)
    again = ratio_standard_error(nats[shuffled], length[shuffled], cluster[shuffled])
    assert again == (pytest.approx(alone[0]), 10)
    assert math.isnan(ratio_standard_error(nats, length, np.zeros(40))[0])


def test_a_sample_says_so_and_what_it_adds_to_the_error():
    model, task = model_for("causal_lm"), Documents(list(range(40)))
    objective = CausalLM(CausalLMConfig(), task)
    found = first_metric(model, objective, task, "test", examples=10, batch_size=5, **CPU)
    assert (found.scored, found.items, found.available) == ("random sample", 10, 40)
    assert found.sampling_error == pytest.approx(found.standard_error * math.sqrt(0.75))
    assert "10 of 40 items, windows of 24 tokens of which each scores 12" in found.extent()


@pytest.mark.parametrize(("rate", "items"), [(1.0, 2000), (0.97, 2000), (0.5, 10_000), (0.9, 3960)])
def test_generated_tasks_are_scored_until_the_error_is_half_a_point(rate, items):
    """Examples have a single answer each, right with a probability of its own."""
    task = Recall(RecallConfig(sequence_length=4, num_pairs=1, num_symbols=4))
    rng = torch.Generator().manual_seed(0)

    class Guesser(CausalLM):
        def evaluate(self, model, batch, generators):
            return Score(accuracy_B=(torch.rand(len(batch.tokens_BT), generator=rng) < rate).double())

    found = first_metric(
        Uniform(task.vocabulary.size),
        Guesser(CausalLMConfig(), task),
        task,
        "test",
        examples=None,
        batch_size=500,
        **CPU,
    )
    assert found.items == pytest.approx(items, rel=0.1)
    assert found.standard_error <= 0.00501
    assert (found.scored, found.available, found.clusters) == ("generated examples", None, found.items)
