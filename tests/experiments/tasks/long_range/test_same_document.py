import re
from itertools import pairwise

import numpy as np
import pytest
import torch

from archbench.experiments.data.corpus import CorpusConfig, documents
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.long_range.same_document import (
    ONE_DOCUMENT,
    SEPARATOR,
    TWO_DOCUMENTS,
    SameDocument,
    SameDocumentConfig,
)

SOURCE, LENGTH = "embedded_library", 130
"""A small corpus: that of packages takes a minute to prepare."""
PIECE = 64


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))

    def made(**settings):
        defaults = {"source": SOURCE, "sequence_length": LENGTH, "cache_dir": cache}
        return SameDocument(SameDocumentConfig(**(defaults | settings)))

    return made


@pytest.fixture(scope="module", params=[0, 10, None], ids=lambda gap: f"gap={gap}")
def task(request, make):
    return make(gap=request.param)


def pieces_and_labels(batch):
    rows = batch.tokens_BT.numpy().astype(np.int64)
    first, second = rows[:, :PIECE].astype(np.uint8), rows[:, PIECE + 1 : -1].astype(np.uint8)
    return [a.tobytes() for a in first], [b.tobytes() for b in second], rows[:, -1]


def count_of(task, split, most=200):
    return min(most, task.num_examples(split) or most)


def test_the_last_token_is_the_answer_and_is_not_shown(task):
    batch = task.batch("train", 0, 5, 40)
    assert batch.tokens_BT.shape == (40, LENGTH)
    assert (batch.tokens_BT[:, PIECE] == SEPARATOR).all()
    assert batch.answer_BT[:, -1].all()
    assert batch.answer_BT.sum() == 40
    assert set(batch.tokens_BT[:, -1].tolist()) == set(task.labels) == {TWO_DOCUMENTS, ONE_DOCUMENT}
    assert (batch.context_BT[:, -1] == 0).all()
    assert torch.equal(batch.context_BT[:, :-1], batch.tokens_BT[:, :-1])
    assert batch.valid_BT.all()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_label_says_whether_a_document_has_both_pieces(task, split):
    texts = [d.text.encode() for s, d in documents(CorpusConfig(source=SOURCE)) if s == split]
    batch = task.batch(split, 3, 0, count_of(task, split))
    apart = 0
    for first, second, label in zip(*pieces_and_labels(batch), strict=True):
        ways = [(text.find(first), text.rfind(second)) for text in texts if first in text and second in text]
        if label == TWO_DOCUMENTS:
            apart += not ways
            assert any(first in text for text in texts)
            assert any(second in text for text in texts)
        elif task.config.gap is None:
            assert any(end - begin >= PIECE for begin, end in ways)
        else:
            pair = re.compile(re.escape(first) + b"(?s:.{%d})" % task.config.gap + re.escape(second))
            assert any(pair.search(text) for text in texts)
    assert apart > 0.9 * len(batch.tokens_BT) / 2  # few texts repeat


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_labels_are_balanced_in_every_pair_and_their_order_is_random(task, split):
    *_, labels = pieces_and_labels(task.batch(split, 0, 0, count_of(task, split, 400)))
    pairs = labels.reshape(-1, 2)
    assert (pairs.sum(1) == ONE_DOCUMENT + TWO_DOCUMENTS).all()
    assert 0.25 < (pairs[:, 0] == ONE_DOCUMENT).mean() < 0.75


def test_training_examples_are_pure_fresh_and_follow_the_seed(task):
    batch = task.batch("train", 1, 100, 30).tokens_BT
    single = torch.cat([task.batch("train", 1, 100 + i, 1).tokens_BT for i in range(30)])
    assert torch.equal(batch, single)
    assert not torch.equal(batch, task.batch("train", 2, 100, 30).tokens_BT)
    assert len({tuple(row) for row in task.batch("train", 1, 0, 1000).tokens_BT.tolist()}) > 990
    assert task.num_examples("train") is None
    assert task.batch("train", 1, 10**12, 2).tokens_BT.shape == (2, LENGTH)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_examples_are_the_same_for_every_seed_and_their_pairs_do_not_overlap(task, split):
    count = task.num_examples(split)
    batch = task.batch(split, 0, 0, count)
    assert torch.equal(batch.tokens_BT, task.batch(split, 9, 0, count).tokens_BT)
    assert torch.equal(batch.cluster_B, task.batch(split, 9, 0, count).cluster_B)
    one, other = task._held_out[split]
    assert (one.document_P != other.document_P).all()
    begins = sorted([*one.first_P.tolist(), *one.second_P.tolist()])
    assert min(end - begin for begin, end in pairwise(begins)) >= PIECE
    with pytest.raises(ValueError, match=f"the {split} split has {count} examples"):
        task.batch(split, 0, count, 1)


def test_similar_bytes_tell_nearby_pieces_but_one_piece_tells_nothing(make):
    found = {r.name: r.value for r in make(gap=0).references()}
    assert found["chance"] == 0.5
    assert 0.55 < found["similarity of bytes"] < 0.95
    firsts, seconds, labels = pieces_and_labels(make().batch("train", 0, 0, 4000))
    for texts in (firsts, seconds):
        upper = np.array([sum(chr(byte).isupper() for byte in text) for text in texts])
        means = [upper[labels == label].mean() for label in (ONE_DOCUMENT, TWO_DOCUMENTS)]
        assert abs(means[0] - means[1]) < 4 * upper.std() / np.sqrt(1000)


def test_the_fingerprint_follows_piece_and_gap(make):
    fingerprints = {make(**s).fingerprint for s in ({}, {"gap": 1}, {"gap": None}, {"sequence_length": 66})}
    assert len(fingerprints) == 4
    assert make().fingerprint in fingerprints


def test_impossible_settings_are_refused_with_a_remedy(make):
    with pytest.raises(DataError, match="sequence_length=1000000"):
        make(sequence_length=1_000_000)
    for settings, message in (
        ({"sequence_length": 255}, "must be even"),
        ({"gap": -1}, "gap=-1"),
        ({"source": "package_cod"}, "package_code"),
    ):
        with pytest.raises(ValueError, match=message):
            SameDocumentConfig(**settings)
