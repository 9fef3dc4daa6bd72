"""The tasks with labels beside the text: form, order, splits, labels, and mistakes in the data."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.evaluation.measure import first_examples, measure
from archbench.experiments.objectives.fine_tuning.token_classification import (
    TaggedPiece,
    TokenClassification,
    TokenClassificationConfig,
    joined_sentences,
)
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.text.base import cut_longer
from archbench.experiments.tasks.text.sentence_similarity import SentenceSimilarity, SentenceSimilarityConfig
from archbench.experiments.tasks.text.sequence_classification import Sentences, SentencesConfig
from archbench.experiments.tasks.text.token_classification import Tags, TagsConfig, entities
from tests import ROOT
from tests.experiments.data.tokenizers.test_folder_tokenizer import word_piece
from tests.experiments.objectives import toys

CONF = ROOT / "conf" / "task"
TASKS = {
    "sentences": (Sentences, SentencesConfig),
    "similarity": (SentenceSimilarity, SentenceSimilarityConfig),
    "tags": (Tags, TagsConfig),
}
BOS, EOS, PAD = 257, 258, 256


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path)]


def files(tmp_path, train, held_out=None, suffix="jsonl"):
    """Settings of a task over these rows; held-out rows serve as validation and test."""
    held_out = write(tmp_path / f"held_out.{suffix}", held_out or train)
    Path(held_out[0]).write_text(
        Path(held_out[0]).read_text() + "\n"
    )  # a file equal to training's is refused
    paths = write(tmp_path / f"train.{suffix}", train)
    return {"source": "files", "paths": paths, "validation_paths": held_out, "test_paths": held_out}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The three tasks as their YAMLs have them, on what they make themselves."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return {
        "sentences": Sentences(SentencesConfig(cache_dir=cache)),
        "similarity": SentenceSimilarity(SentenceSimilarityConfig()),
        "tags": Tags(TagsConfig()),
    }


@pytest.mark.parametrize("name", TASKS)
def test_examples_are_a_pure_function_of_split_seed_and_number(made, name):
    task = made[name]
    together = task.batch("train", 1, 100, 20)
    single = torch.cat([task.batch("train", 1, 100 + i, 1).tokens_BT for i in range(20)])
    assert torch.equal(together.tokens_BT, single)
    assert not torch.equal(together.tokens_BT, task.batch("train", 2, 100, 20).tokens_BT)
    for split in ("validation", "test"):
        count = task.num_examples(split)
        batch = task.batch(split, 0, 0, count)
        assert torch.equal(batch.tokens_BT, task.batch(split, 9, 0, count).tokens_BT)
        assert len({tuple(row) for row in batch.tokens_BT.tolist()}) > 0.9 * count
        with pytest.raises(ValueError, match=f"the {split} split has {count} examples"):
            task.batch(split, 0, count, 1)


@pytest.mark.parametrize("name", TASKS)
def test_an_epoch_shows_every_example_once_in_a_new_order(made, name):
    task = made[name]
    count = task.num_examples("train")
    epochs = [
        [tuple(row) for row in task.batch("train", 3, e * count, count).tokens_BT.tolist()] for e in (0, 1)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("name", TASKS)
def test_texts_stand_between_special_tokens_and_padding_on_the_right(made, name):
    task = made[name]
    batch = task.batch("train", 0, 0, 64)
    assert batch.tokens_BT.shape == (64, task.sequence_length)
    texts = 2 if name == "similarity" else 1
    for row in range(64):
        length = int(batch.valid_BT[row].sum())
        tokens = batch.tokens_BT[row].tolist()
        assert batch.valid_BT[row, :length].all()
        assert tokens[0] == BOS
        assert tokens[length - 1] == EOS
        assert set(tokens[length:]) <= {PAD}
        assert tokens.count(EOS) == texts
    assert batch.whole is False
    assert batch.split == "train"


def test_paragraphs_are_of_the_class_they_are_said_to_be(made):
    task = made["sentences"]
    assert task.classes == ["library", "reference"]
    from archbench.experiments.data.corpus import CorpusConfig, documents

    for name in task.classes:
        corpus = {"train": "", "validation": "", "test": ""}
        for split, document in documents(CorpusConfig(source=f"embedded_{name}")):
            corpus[split] += " ".join(document.text.split()) + " "
        for split in ("train", "test"):
            rows = [row for row in task.parsed[split] if row.target == name]
            assert len(rows) == len(task.parsed[split]) / 2
            assert all(row.texts[0] in corpus[split] for row in rows[:: len(rows) // 20])
    labels = task.batch("test", 0, 0, 40).label_B
    assert 8 <= labels.sum() <= 32  # held-out examples are mixed, not one class after the other
    assert task.references()[0].value == pytest.approx(0.5)


def test_pairs_have_segments_and_the_longer_is_cut_first(tmp_path):
    rows = [{"a": "x" * 30, "b": "yy", "label": 0}, {"a": "xx", "b": "y" * 30, "label": 1}]
    settings = files(tmp_path, rows) | {"text_column": "a", "pair_column": "b", "sequence_length": 16}
    batch = Sentences(SentencesConfig(**settings)).batch("test", 0, 0, 2)
    by_label = {int(label): row for row, label in enumerate(batch.label_B)}
    for label, (first, second) in {0: (11, 2), 1: (2, 11)}.items():
        row = by_label[label]
        expected = [BOS, *[ord("x")] * first, EOS, *[ord("y")] * second, EOS]
        assert batch.tokens_BT[row].tolist() == expected
        assert batch.segments_BT[row].tolist() == [0] * (first + 2) + [1] * (second + 1)


def test_what_is_cut_is_cut_at_the_end_of_the_longest():
    parts = [list(range(5)), list(range(10, 19)), list(range(20, 22))]
    assert cut_longer(parts, 16) == parts
    assert cut_longer(parts, 12) == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14], [20, 21]]
    assert [len(part) for part in cut_longer(parts, 5)] == [1, 2, 2]


def test_classes_are_those_of_the_training_split(tmp_path):
    train = [{"text": f"t{i}", "label": name} for i, name in enumerate(["pos", "neg", "pos", "pos"])]
    task = Sentences(SentencesConfig(**files(tmp_path, train, [{"text": "u", "label": "neg"}] * 3)))
    assert task.classes == ["neg", "pos"]
    assert task.batch("test", 0, 0, 3).label_B.tolist() == [0, 0, 0]
    (majority,) = task.references()
    assert (majority.metric, majority.value) == ("accuracy", 0.0)  # of the training split, not of the test
    unseen = files(tmp_path, train, [{"text": "u", "label": "poss"}])
    with pytest.raises(DataError, match=r"line 1: 'poss' is not in the training split; did you mean 'pos'"):
        Sentences(SentencesConfig(**unseen))


def test_the_fingerprint_follows_rows_labels_and_length(tmp_path):
    rows = [{"text": f"t{i}", "label": i % 2} for i in range(6)]

    def fingerprint(train=rows, held_out=rows, **settings):
        return Sentences(SentencesConfig(**files(tmp_path, train, held_out), **settings)).fingerprint

    found = [
        fingerprint(),
        fingerprint([*rows[:-1], {"text": "t5", "label": 0}]),
        fingerprint([*rows[:-1], {"text": "t6", "label": 1}]),
        fingerprint(held_out=rows[:-1]),
        fingerprint(sequence_length=64),
    ]
    assert len(set(found)) == 5
    assert fingerprint() == found[0]


def test_a_bpe_is_learned_from_the_training_texts(tmp_path):
    rows = [{"text": "the cat sat on the mat " * 3, "label": i % 2} for i in range(4)]
    config = SentencesConfig(
        **files(tmp_path, rows, [{"text": "the cat é", "label": 1}]),
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=262),
    )
    task = Sentences(config)
    assert task.vocabulary.num_symbols == 262
    tokens = task.batch("test", 0, 0, 1).tokens_BT[0]
    assert task.tokenizer.decode(tokens.tolist()) == "the cat é"
    assert (tokens != task.vocabulary.pad).sum() < 2 + len("the cat é".encode())


def test_similar_sentences_share_meanings_not_words(made):
    task = made["similarity"]
    batch = task.batch("train", 0, 0, 500)
    assert set(batch.label_B.tolist()) == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert batch.label_B.dtype == torch.float32
    alike = [row.texts for row in task.parsed["train"] if row.target == 1.0]
    assert any(not set(a.split()) & set(b.split()) for a, b in alike)
    (overlap,) = task.references()
    assert overlap.metric == "spearman"
    assert 0.5 < overlap.value < 0.85


def test_scores_are_scaled_and_each_text_has_half_of_the_room(tmp_path):
    rows = [{"sentence1": "a" * 50, "sentence2": "b", "stars": value} for value in ("5.0", "2.5", 0, 4)]
    names = {"text_column": "sentence1", "pair_column": "sentence2", "score_column": "stars"}
    settings = files(tmp_path, rows) | names | {"sequence_length": 20}
    task = SentenceSimilarity(SentenceSimilarityConfig(**settings, max_score=5.0))
    batch = task.batch("test", 0, 0, 4)
    assert sorted(batch.label_B.tolist()) == pytest.approx([0, 0.5, 0.8, 1])
    assert batch.tokens_BT[0, :12].tolist() == [BOS, *[97] * 8, EOS, 98, EOS]
    with pytest.raises(DataError, match=r"score 5\.0 is outside 0 to 1: set task.max_score"):
        SentenceSimilarity(SentenceSimilarityConfig(**settings))


def test_a_word_is_tagged_at_its_last_token(tmp_path):
    rows = [{"tokens": ["Ada", "é", "sat"], "tags": ["B-PER", "I-PER", "O"]}] * 2
    task = Tags(TagsConfig(**files(tmp_path, rows)))
    batch = task.batch("test", 0, 0, 1)
    text = "Ada é sat".encode()
    assert bytes(batch.tokens_BT[0, 1 : 1 + len(text)].tolist()) == text
    positions = batch.answer_BT[0].nonzero().flatten().tolist()
    assert positions == [3, 6, 10]  # behind bos; é has two bytes
    assert [task.classes[tag] for tag in batch.tag_BT[0][batch.answer_BT[0]]] == ["B-PER", "I-PER", "O"]
    assert batch.label_B is None


def test_long_sentences_are_cut_between_words_and_no_word_is_lost(tmp_path):
    rng = np.random.default_rng(0)
    words = ["w" * int(n) for n in rng.integers(1, 9, size=60)]
    words[30] = "w" * 40  # longer than a whole piece: cut itself
    tags = [f"B-{i % 4}" for i in range(60)]
    task = Tags(TagsConfig(**files(tmp_path, [{"tokens": words, "tags": tags}]), sequence_length=24))
    count = task.num_examples("test")
    batch = task.batch("test", 0, 0, count)
    assert count > 10
    assert batch.answer_BT.sum() == 60
    assert not (batch.answer_BT & ~batch.valid_BT).any()
    named = sorted(task.classes[tag] for tag in batch.tag_BT[batch.answer_BT])
    assert named == sorted(tags)


def scored(task, count):
    """Metrics of a model that tags every token as the batch says."""
    objective = TokenClassification(TokenClassificationConfig(), task)
    batch, records = task.batch("test", 0, 0, count), []
    for words, tag_T in zip(batch.words, batch.tag_BT.tolist(), strict=True):
        guesses = [task.default_tag if at is None else tag_T[at] for at in words.positions]
        records.append(TaggedPiece(words.sentence, words.begin, words.tags, guesses))
    return {m.name: m for m in objective.summarise(records, "test")}


@pytest.mark.parametrize("strange", ["\u200b", "\u00ad", "\ufeff", "\u200d", "\u2060"])
@pytest.mark.parametrize("place", range(5))
def test_a_word_without_tokens_leaves_the_tags_of_its_neighbours(tmp_path, strange, place):
    words, tags = ["the", "cat", "sat", "a", "cat"], ["B-PER", "I-PER", "O", "O", "B-LOC"]
    held_out = [{"tokens": [strange if i == place else w for i, w in enumerate(words)], "tags": tags}] * 3
    settings = files(tmp_path, [{"tokens": words, "tags": tags}] * 9, held_out)
    tokenizer = TokenizerConfig(kind="folder", path=str(word_piece(tmp_path / "bert")), post_processing=[])
    task = Tags(TagsConfig(**settings, tokenizer=tokenizer))
    assert task.tokenizer.encode(f" {strange}") == []
    batch = task.batch("test", 0, 0, 1)
    tagged = [task.classes[tag] for tag in batch.tag_BT[0][batch.answer_BT[0]]]
    assert tagged == [tag for i, tag in enumerate(tags) if i != place]
    assert [task.classes[tag] for tag in batch.words[0].tags] == tags
    assert batch.words[0].positions[place] is None
    found = scored(task, 3)
    assert found["tag_accuracy"].value == pytest.approx(1 if tags[place] == "O" else 0.8)
    assert found["entity_f1"].value == pytest.approx([0.5, 0.5, 1, 1, 2 / 3][place])


def test_entities_of_a_long_document_count_once_however_it_is_cut(tmp_path):
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(4):
        tags = [
            tag for n in rng.integers(1, 6, size=60) for tag in ["B-X", *["I-X"] * int(n), "O"][: int(n) + 1]
        ]
        documents.append({"tokens": ["w" * int(n) for n in rng.integers(1, 9, size=len(tags))], "tags": tags})
    gold = sum(tag == "B-X" for row in documents for tag in row["tags"])
    for length in (24, 40, 4000):
        settings = files(tmp_path, documents, documents)
        task = Tags(TagsConfig(**settings, sequence_length=length))
        count = task.num_examples("test")
        pieces = task.batch("test", 0, 0, count).words
        assert len(pieces) == count
        order = [words.sentence for words in pieces]
        assert [key for key, _ in itertools.groupby(order)] == list(dict.fromkeys(order))  # pieces together
        records = [TaggedPiece(w.sentence, w.begin, w.tags, w.tags) for w in pieces]
        joined = joined_sentences(records)
        assert len(joined) == 4
        assert sum(len(entities([task.classes[t] for t in tags])) for tags, _ in joined) == gold
        assert task.clustered_by("test") == ("example" if length == 4000 else "sentence")


def test_a_sample_of_tags_has_whole_sentences(tmp_path):
    """The model tags every word I-PER: of each entity it misses the end, in the last of eight pieces."""
    rows = [{"tokens": ["ab"] * 32, "tags": ["B-PER", *["I-PER"] * 30, "O"]}] * 6
    task = Tags(TagsConfig(**files(tmp_path, rows), sequence_length=16))
    objective = TokenClassification(TokenClassificationConfig(), task)
    model = toys.build("decoder", task.vocabulary.size)
    model.attach_readout(objective.make_readout(model).double())
    with torch.no_grad():
        model.readout.classifier.weight.zero_()
        model.readout.classifier.bias.copy_(torch.arange(3) == task.classes.index("I-PER"))

    def found(**settings):
        return measure(model, objective, task, "test", precision="fp32", **settings)[0]

    whole = found(examples=None, batch_size=7)
    assert (whole.value, whole.items, whole.clusters, whole.scored) == (0, 48, 6, "whole split")
    for examples, batch_size in itertools.product((2, 3, 5), (1, 7, 32)):
        metric = found(examples=examples, batch_size=batch_size)
        assert (metric.value, metric.items, metric.available) == (0, 8 * examples, 48)
        assert (metric.clusters, metric.clustered_by, metric.standard_error) == (examples, "sentence", 0)
    assert found(examples=12, batch_size=7) == whole
    with pytest.raises(DataError, match="examples=1: give at least 2"):
        found(examples=1, batch_size=7)


def test_a_large_split_of_tags_is_cut_after_a_sentence(tmp_path, monkeypatch):
    rows = [{"tokens": ["ab"] * n, "tags": ["O"] * n} for n in (1, 9, 40, 3, 20)]
    settings = files(tmp_path, rows) | {"sequence_length": 16, "metric": "tag_accuracy"}
    task = Tags(TagsConfig(**settings))
    sentences = [words.sentence for words in task.batch("test", 0, 0, task.num_examples("test")).words]
    ends = [i + 1 for i, (a, b) in enumerate(zip(sentences, [*sentences[1:], -1], strict=True)) if a != b]
    assert task.sample_ends("test").tolist() == ends
    monkeypatch.setattr("archbench.experiments.evaluation.measure.WHOLE_SPLIT_TOKENS", 0)
    for most in range(1, 30):
        monkeypatch.setattr("archbench.experiments.evaluation.measure.MOST_EXAMPLES", most)
        expected = next((end for end in ends if end >= most), ends[-1])
        assert first_examples(task, "test", None) == expected


def test_the_names_of_the_default_are_only_told_by_their_surroundings(made):
    task = made["tags"]
    assert task.classes == ["B-LOC", "B-ORG", "B-PER", "I-LOC", "I-ORG", "I-PER", "O"]
    (dictionary,) = task.references()
    assert dictionary.value < 0.3
    other = Tags(dataclasses.replace(task.config, metric="tag_accuracy"))
    assert 0.5 < other.references()[0].value < 0.9


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("sentences", [{"text": "a", "label": -1}], "has -1, not the name or number of a class"),
        ("sentences", [{"text": "a", "label": 0.5}], "has 0.5"),
        ("sentences", [{"text": "a", "label": 0}], "has 1 class: classification takes two or more"),
        ("sentences", [{"txt": "a", "label": 0}], "no column 'text'; did you mean 'txt'.*task.text_column"),
        ("sentences", [{"text": "a"}], "no column 'label'.*Set task.label_column"),
        ("similarity", [{"text": "a", "text_pair": "b", "score": "x"}], "score 'x' is not a number"),
        ("similarity", [{"text": "a", "score": 1}], "no column 'text_pair'.*task.pair_column"),
        ("tags", [{"tokens": ["a"], "tags": ["O", "O"]}], "1 words and 2 tags"),
        ("tags", [{"tokens": "a b", "tags": ["O", "O"]}], "is not a list of words"),
        ("tags", [{"tokens": [], "tags": []}], "has no words: remove the row"),
        ("tags", [{"tokens": ["a"], "tags": [-1]}], "has gaps"),
        ("tags", [{"tokens": ["a"], "tags": ["NOUN"]}], "tag 'NOUN' marks no entity.*task.metric=tag_acc"),
    ],
)
def test_mistakes_in_the_data_are_named(tmp_path, name, rows, message):
    cls, config = TASKS[name]
    with pytest.raises(DataError, match=message):
        cls(config(**files(tmp_path, rows)))


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (SentencesConfig, {"metric": "accurcy"}, "metric='accurcy' is unknown; did you mean 'accuracy'"),
        (SentencesConfig, {"pair_column": "b"}, "source=embedded has no pairs"),
        (SentencesConfig, {"sequence_length": 4}, "sequence_length=4"),
        (SentenceSimilarityConfig, {"max_score": 0.0}, "max_score=0.0"),
        (SentenceSimilarityConfig, {"source": "embedded"}, "source='embedded' is unknown"),
        (TagsConfig, {"metric": "f1"}, "metric='f1' is unknown"),
        (TagsConfig, {"num_sentinels": -1}, "num_sentinels=-1"),
    ],
)
def test_settings_that_cannot_be_are_refused(config, settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)
