"""Objectives that learn through a readout: classes of texts, tags of words, similarity of texts."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from seqeval import metrics
from torch.nn import functional as F

from archbench.experiments.objectives.fine_tuning.sentence_similarity import Similarity, SimilarityConfig
from archbench.experiments.objectives.fine_tuning.sequence_classification import (
    SequenceClassification,
    SequenceClassificationConfig,
)
from archbench.experiments.objectives.fine_tuning.token_classification import (
    TaggedPiece,
    TokenClassification,
    TokenClassificationConfig,
    joined_sentences,
)
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.recall.mqar import Recall
from archbench.experiments.tasks.task import Batch
from archbench.experiments.tasks.text.sentence_similarity import SentenceSimilarity
from archbench.experiments.tasks.text.sequence_classification import Sentences
from archbench.experiments.tasks.text.token_classification import Tags
from tests.experiments.objectives import toys

NAMES = [*toys.CAUSAL, "encoder", "masked_diffusion"]
LENGTHS = [21, 9, 12, 7, 21, 16]
MIDDLES = [1 + (length - 3) // 2 for length in LENGTHS]
"""Where the first text of a pair ends."""
PARTS = [(0, 1), (1, 4), (4, 6)]


class Labelled(toys.Symbols):
    """Padded texts with whatever is asked of them."""

    sequence_length = 21
    classes = ("O", "B-X", "I-X")

    def __init__(self, targets, metric):
        super().__init__(20)
        self.targets, self.metric = targets, metric

    def examples(self):
        v = self.vocabulary
        batch = toys.padded_text(LENGTHS, v)
        tokens_BT = batch.tokens_BT.clone()
        tokens_BT[:, 0] = v.bos
        ends = torch.tensor(LENGTHS) - 1
        tokens_BT[torch.arange(6), ends] = v.eos
        generator = torch.Generator().manual_seed(0)
        answer_BT = torch.rand(tokens_BT.shape, generator=generator) < 0.4
        found = {
            "classes": {"label_B": torch.tensor([0, 2, 1, 1, 0, 2])},
            "scores": {"label_B": torch.tensor([0.0, 1.0, 0.5, 0.25, 0.75, 1.0])},
            "tags": {"tag_BT": torch.randint(3, tokens_BT.shape, generator=generator)},
        }[self.targets]
        if self.targets == "scores":  # [bos] a [eos] b [eos]
            middle_B = torch.tensor(MIDDLES)
            tokens_BT[torch.arange(6), middle_B] = v.eos
            found["segments_BT"] = (torch.arange(21) > middle_B[:, None]).long()
        return Batch(
            tokens_BT=tokens_BT,
            context_BT=tokens_BT,
            answer_BT=answer_BT & batch.valid_BT,
            valid_BT=batch.valid_BT,
            **found,
        )


def classification(**settings):
    return SequenceClassification(
        SequenceClassificationConfig(**{"dropout": 0.0} | settings), Labelled("classes", "macro_f1")
    )


def tagging():
    return TokenClassification(TokenClassificationConfig(dropout=0.0), Labelled("tags", "entity_f1"))


def similarity(**settings):
    return Similarity(SimilarityConfig(**settings), Labelled("scores", "pearson"))


OBJECTIVES = {"classification": classification, "tagging": tagging, "similarity": similarity}


def build(name, objective):
    model = toys.build(name, objective.vocabulary.size)
    torch.manual_seed(1)
    readout = objective.make_readout(model)
    model.attach_readout(readout.double())
    return model


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", NAMES)
def test_every_family_but_the_encoder_decoder_learns_and_micro_batches_add_up(name, kind):
    objective = OBJECTIVES[kind]()
    model = build(name, objective)
    view = objective.view(objective.task.examples(), torch.Generator())

    def gradients(bounds):
        model.zero_grad()
        total = 0.0
        for start, stop in bounds:
            part = view.rows(start, stop)
            output = part.run(model)
            loss = objective.loss(output, part)[0] / view.count_B.sum()
            loss = loss + sum(objective.auxiliary(output, part).values()) / 6
            loss.backward()
            total += loss.item()
        return total, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    loss, at_once = gradients([(0, 6)])
    parts, added = gradients(PARTS)
    assert parts == pytest.approx(loss, rel=1e-6)
    for parameter, gradient in at_once.items():
        tolerance = 1e-6 * max(1.0, gradient.abs().max().item())
        torch.testing.assert_close(added[parameter], gradient, rtol=1e-4, atol=tolerance)
    learned = {parameter.split(".")[0] for parameter, gradient in at_once.items() if gradient.abs().sum() > 0}
    assert "embedding" in learned
    assert ("readout" in learned) == (kind != "similarity")
    assert "encoder_decoder" not in NAMES
    capabilities = toys.OTHERS["encoder_decoder"][0].capabilities  # type: ignore[attr-defined]
    assert type(objective).missing_capability(capabilities) == "a causal or a bidirectional backbone"


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", NAMES)
def test_padding_and_neighbours_change_nothing(name, kind):
    objective = OBJECTIVES[kind]()
    model, batch = build(name, objective).eval(), objective.task.examples()
    together = objective.evaluate(model, batch, toys.generators(6)).records
    for row, length in enumerate(LENGTHS):
        kept = 21 if kind == "similarity" else length  # its texts have fixed room
        alone = Batch(
            **{
                n: v
                if not isinstance(v, torch.Tensor)
                else v[row : row + 1, :kept]
                if v.dim() == 2
                else v[row : row + 1]
                for n, v in vars(batch).items()
            }
        )
        (record,) = objective.evaluate(model, alone, toys.generators(1)).records
        if kind == "similarity":
            assert record == pytest.approx(together[row], abs=1e-5)
        else:
            assert record == together[row]


def test_the_loss_of_a_classifier_is_the_mean_cross_entropy_of_the_classes():
    objective = classification()
    model = build("encoder", objective)
    batch = objective.task.examples()
    view = objective.view(batch, torch.Generator())
    output = view.run(model)
    total, count = objective.loss(output, view)
    expected = F.cross_entropy(output.readout.float(), batch.label_B)
    torch.testing.assert_close(total / count, expected)
    assert output.readout.shape == (6, 3)


@pytest.mark.parametrize("name", NAMES)
def test_the_pooled_state_has_seen_the_whole_text(name):
    """A change at the other end of the text changes the scores."""
    objective = classification(pooler=False)
    model, batch = build(name, objective).eval(), objective.task.examples()
    place = 2 if name in toys.CAUSAL else LENGTHS[0] - 2
    changed = batch.tokens_BT.clone()
    changed[0, place] = (changed[0, place] + 1) % 20
    first, second = (
        objective.answer_view(replace(batch, tokens_BT=t)).run(model).readout
        for t in (batch.tokens_BT, changed)
    )
    assert (first[0] - second[0]).abs().max() > 1e-6
    torch.testing.assert_close(first[1:], second[1:])


def test_the_first_token_of_a_causal_backbone_is_refused():
    with pytest.raises(DataError, match=r"pooling=first.*use last, mean or auto"):
        classification(pooling="first").make_readout(toys.build("mamba", 24))
    assert classification(pooling="first").make_readout(toys.build("encoder", 24)).pooling == "first"
    assert classification().make_readout(toys.build("decoder", 24)).pooling == "last"
    assert similarity().make_readout(toys.build("decoder", 24)).pooling == "mean"


def test_metrics_of_a_classifier_come_from_all_records_the_task_s_first():
    metrics = classification().summarise([(0, 0), (1, 1), (1, 2), (2, 2)], "test")
    assert [metric.name for metric in metrics] == ["macro_f1", "accuracy", "matthews"]
    assert metrics[0].value == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert metrics[1].value == pytest.approx(3 / 4)
    assert all(metric.likelihood is None and metric.items == 4 for metric in metrics)


def test_tags_are_scored_at_the_words_only():
    objective = tagging()
    model, batch = build("encoder", objective), objective.task.examples()
    view = objective.view(batch, torch.Generator())
    output = view.run(model)
    total, count = objective.loss(output, view)
    assert count == batch.answer_BT.sum()
    expected = F.cross_entropy(output.readout.float()[batch.answer_BT], batch.tag_BT[batch.answer_BT])
    torch.testing.assert_close(total / count, expected)
    records = objective.evaluate(model, batch, toys.generators(6)).records
    for row, (_, _, tags, guesses) in enumerate(records):
        words = batch.answer_BT[row]
        assert tags == batch.tag_BT[row][words].tolist()
        assert guesses == output.readout[row].argmax(-1)[words].tolist()


def sentences(records):
    """Each record as a sentence that is not cut."""
    return [TaggedPiece(number, 0, *record) for number, record in enumerate(records)]


def test_pieces_of_a_sentence_are_scored_together():
    tags, guesses = [0, 1, 2, 2, 0, 1, 0, 1], [0, 1, 2, 2, 0, 0, 0, 1]
    whole = tagging().summarise(sentences([(tags, guesses), ([1], [1])]), "test")
    ends = [0, 3, 4, 8]  # the first cut goes through an entity
    cut = [TaggedPiece(0, a, tags[a:b], guesses[a:b]) for a, b in itertools.pairwise(ends)]
    joined = tagging().summarise([cut[1], TaggedPiece(1, 0, [1], [1]), cut[2], cut[0]], "test")
    assert [(m.name, m.value) for m in joined] == [(m.name, m.value) for m in whole]
    assert {(m.items, m.clusters) for m in joined} == {(4, 2)}
    apart = joined_sentences([cut[0], cut[2]])  # a sample without the piece between them
    assert [tags for tags, _ in apart] == [[0, 1, 2], [0, 1, 0, 1]]


def test_entities_count_as_a_whole():
    """Tags: 0 O, 1 B-X, 2 I-X. Of three entities one is found, one is cut short, one is missed."""
    records = [
        ([1, 2, 0, 1, 2], [1, 2, 0, 1, 0]),
        ([0, 1, 0], [0, 0, 0]),
    ]
    found = {metric.name: metric.value for metric in tagging().summarise(sentences(records), "test")}
    assert next(iter(found)) == "entity_f1"
    assert found == pytest.approx(
        {
            "entity_f1": 2 * 1 / (3 + 2),
            "tag_accuracy": 6 / 8,
            "entity_precision": 1 / 2,
            "entity_recall": 1 / 3,
        }
    )
    nothing = {m.name: m.value for m in tagging().summarise(sentences([([0], [0]), ([0], [0])]), "test")}
    assert nothing["entity_f1"] == 0
    assert nothing["tag_accuracy"] == 1


def test_entity_f1_is_that_of_seqeval():
    objective, generator = tagging(), torch.Generator().manual_seed(0)
    records = [
        tuple(torch.randint(3, (2, int(n)), generator=generator).tolist())
        for n in torch.randint(1, 20, (50,), generator=generator)
    ]
    found = {metric.name: metric.value for metric in objective.summarise(sentences(records), "test")}
    true, guessed = ([[objective.task.classes[t] for t in rows[i]] for rows in records] for i in (0, 1))
    assert found["entity_f1"] == pytest.approx(metrics.f1_score(true, guessed))
    assert found["entity_precision"] == pytest.approx(metrics.precision_score(true, guessed))
    assert found["entity_recall"] == pytest.approx(metrics.recall_score(true, guessed))
    assert found["tag_accuracy"] == pytest.approx(metrics.accuracy_score(true, guessed))


def test_tags_that_mark_no_entities_have_their_accuracy_only():
    objective = tagging()
    objective.task.classes, objective.task.metric = ("NOUN", "VERB", "DET"), "tag_accuracy"
    (metric,) = objective.summarise(sentences([([0, 1], [0, 2]), ([2], [2])]), "test")
    assert (metric.name, metric.value) == ("tag_accuracy", pytest.approx(2 / 3))


@pytest.mark.parametrize("name", NAMES)
def test_similar_texts_are_compared_by_the_mean_of_their_own_states(name):
    """Each text goes through the model alone; the vectors are means over its own tokens."""
    objective = similarity()
    model, batch = build(name, objective).eval(), objective.task.examples()
    bos, eos = objective.vocabulary.bos, objective.vocabulary.eos
    expected = []
    for row, (length, middle) in enumerate(zip(LENGTHS, MIDDLES, strict=True)):
        tokens = batch.tokens_BT[row, :length]
        first, second = tokens[: middle + 1], torch.cat([torch.tensor([bos]), tokens[middle + 1 :]])
        assert first[-1] == second[-1] == eos
        vectors = [model(text[None]).hidden_BTD[0].mean(0) for text in (first, second)]
        expected.append(F.cosine_similarity(*vectors, dim=0).item())
    records = objective.evaluate(model, batch, toys.generators(6)).records
    assert [cosine for _, cosine in records] == pytest.approx(expected, abs=1e-5)


def test_the_loss_of_similarity_is_the_squared_error_of_the_cosine():
    objective = similarity()
    model, batch = build("encoder", objective), objective.task.examples()
    view = objective.view(batch, torch.Generator())
    output = view.run(model)
    total, count = objective.loss(output, view)
    cosine = F.cosine_similarity(*output.readout.float(), dim=-1)
    torch.testing.assert_close(total / count, F.mse_loss(cosine, batch.label_B))
    assert view.passes == 2
    metrics = objective.summarise([(0.0, 0.1), (0.5, 0.2), (1.0, 0.9)], "test")
    assert [metric.name for metric in metrics] == ["pearson", "spearman"]
    assert metrics[1].value == pytest.approx(1)


def test_targets_decide_which_tasks_suit():
    suits = {
        SequenceClassification: Sentences,
        TokenClassification: Tags,
        Similarity: SentenceSimilarity,
        CausalLM: Recall,
    }
    for objective in suits:
        for other, task in suits.items():
            reason = objective.incompatibility(task)
            assert (reason is None) == (other is objective)
            if reason is not None:
                assert task.targets in reason  # type: ignore[attr-defined]
                assert objective.targets in reason


def test_no_likelihood_and_no_text_comes_from_a_classifier():
    objective = classification()
    model = build("encoder", objective)
    with pytest.raises(DataError, match="gives no likelihood"):
        objective.likelihood_score(model, objective.task.examples(), [])
    with pytest.raises(DataError, match="left to right"):
        objective.prefill_state(model, [[1]], 4)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (SequenceClassificationConfig, {"pooling": "max"}),
        (SequenceClassificationConfig, {"dropout": 1.0}),
        (TokenClassificationConfig, {"dropout": -0.1}),
        (SimilarityConfig, {"pooling": "cls"}),
    ],
)
def test_impossible_settings_are_refused(config, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        config(**settings)


def test_a_fresh_classifier_is_near_chance():
    """So that the first loss is near the log of the number of classes, not far above."""
    losses = []
    for seed in range(10):
        objective = classification()
        model = toys.build("encoder", objective.vocabulary.size)
        torch.manual_seed(seed)
        model.attach_readout(objective.make_readout(model).double())
        view = objective.view(objective.task.examples(), torch.Generator())
        total, count = objective.loss(view.run(model), view)
        losses.append((total / count).item())
    assert sum(losses) / 10 < 2 * math.log(3)
