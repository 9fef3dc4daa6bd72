import numpy as np
import pytest
import torch

from archbench.experiments.data.corpus import CorpusConfig, documents
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.long_range.text_source import TextSource, TextSourceConfig
from tests import ROOT

CONF = ROOT / "conf" / "task"
LENGTH = 128


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def task(cache):
    return TextSource(TextSourceConfig(sequence_length=LENGTH, cache_dir=cache))


def tokens_and_labels(task, split, seed, count):
    tokens_BT = task.batch(split, seed, 0, count).tokens_BT.numpy()
    return tokens_BT[:, :-1], tokens_BT[:, -1]


def test_the_last_token_is_the_answer_and_is_not_shown(task):
    batch = task.batch("train", 0, 5, 40)
    assert batch.tokens_BT.shape == (40, LENGTH)
    assert batch.tokens_BT.dtype == torch.int64
    assert batch.answer_BT[:, -1].all()
    assert batch.answer_BT.sum() == 40
    assert set(batch.tokens_BT[:, -1].tolist()) == set(task.labels) == {256, 257}
    assert (batch.context_BT[:, -1] == 0).all()
    assert torch.equal(batch.context_BT[:, :-1], batch.tokens_BT[:, :-1])
    assert batch.tokens_BT[:, :-1].max() < 256
    assert batch.valid_BT.all()
    assert not batch.whole
    assert task.vocabulary.num_symbols == 258


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_bytes_come_from_the_class_and_split_that_the_label_says(task, split):
    texts = {}
    for label, source in zip(task.labels, ("embedded_reference", "embedded_library"), strict=True):
        parts = [d.text for s, d in documents(CorpusConfig(source=source)) if s == split]
        texts[label] = "".join(parts).encode()
    windows, labels = tokens_and_labels(task, split, 3, 60)
    for window, label in zip(windows, labels, strict=True):
        assert bytes(window.astype(np.uint8)) in texts[label]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_labels_are_balanced_in_every_pair_and_their_order_is_random(task, split):
    count = min(task.num_examples(split) or 400, 400)
    assert count % 2 == 0
    _, labels = tokens_and_labels(task, split, 0, count)
    pairs = labels.reshape(-1, 2)
    assert (pairs.sum(1) == 256 + 257).all()
    assert 0.35 < (pairs[:, 0] == 256).mean() < 0.65


def test_training_examples_are_pure_fresh_and_follow_the_seed(task, cache):
    batch = task.batch("train", 1, 100, 50).tokens_BT
    single = torch.cat([task.batch("train", 1, 100 + i, 1).tokens_BT for i in range(50)])
    assert torch.equal(batch, single)
    again = TextSource(TextSourceConfig(sequence_length=LENGTH, cache_dir=cache))
    assert torch.equal(batch, again.batch("train", 1, 100, 50).tokens_BT)
    assert not torch.equal(batch, task.batch("train", 2, 100, 50).tokens_BT)
    assert len({tuple(row) for row in task.batch("train", 1, 0, 2000).tokens_BT.tolist()}) > 1980
    assert task.num_examples("train") is None


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_examples_are_all_different_and_the_same_for_every_seed(task, split):
    count = task.num_examples(split)
    assert count >= 200
    batch = task.batch(split, 0, 0, count).tokens_BT
    assert torch.equal(batch, task.batch(split, 9, 0, count).tokens_BT)
    assert len({tuple(row) for row in batch.tolist()}) == count
    with pytest.raises(ValueError, match=f"the {split} split has {count} examples"):
        task.batch(split, 0, count, 1)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_first_held_out_windows_are_a_sample_of_the_texts(task, split):
    size, texts = LENGTH - 1, [file.tokens[split] for file in task._files]
    windows = min(len(text_N) // size for text_N in texts)
    place = {(label, text_N[w * size : (w + 1) * size].tobytes()): w
             for label, text_N in zip(task.labels, texts, strict=True) for w in range(windows)}  # fmt: skip
    tokens_NT, labels = tokens_and_labels(task, split, 0, task.num_examples(split))
    tokens_NT = tokens_NT.astype(texts[0].dtype)
    found = [place[label, row.tobytes()] for label, row in zip(labels.tolist(), tokens_NT, strict=True)]
    assert 0.25 < np.mean(found[:40]) / windows < 0.75
    assert sorted(found) == sorted([*range(windows)] * len(texts))


def test_the_bytes_tell_the_class(task):
    """Naive Bayes on byte pairs, by far the simplest reader, is well above chance on the test split."""

    def pair_counts(windows):
        index = windows[:, :-1] * 256 + windows[:, 1:]
        return np.stack([np.bincount(row, minlength=65536) for row in index])

    windows, labels = tokens_and_labels(task, "train", 0, 2000)
    log_p = [np.log(pair_counts(windows[labels == c]).sum(0) + 0.1) for c in task.labels]
    log_p = [p - np.log(np.exp(p).sum()) for p in log_p]
    windows, labels = tokens_and_labels(task, "test", 0, task.num_examples("test"))
    says_library = pair_counts(windows) @ (log_p[1] - log_p[0]) > 0
    assert (says_library == (labels == task.labels[1])).mean() > 0.65
    found = {r.name: r.value for r in task.references()}
    assert found["majority"] == 0.5
    assert 0.6 < found["bag of bytes"] < 0.95


def test_the_fingerprint_follows_the_window(task, cache):
    same, other = (
        TextSource(TextSourceConfig(sequence_length=n, cache_dir=cache)) for n in (LENGTH, LENGTH + 1)
    )
    assert same.fingerprint == task.fingerprint != other.fingerprint


def test_each_source_is_a_class(cache):
    sources = ["embedded_library", "embedded", "embedded_reference"]
    task = TextSource(TextSourceConfig(sequence_length=LENGTH, sources=sources, cache_dir=cache))
    _, labels = tokens_and_labels(task, "train", 0, 300)
    assert (np.sort(labels.reshape(-1, 3)) == [256, 257, 258]).all()
    assert set(labels[::3].tolist()) == set(task.labels)
    assert task.num_examples("test") % 3 == 0
    assert task.vocabulary.num_symbols == 259
    two = TextSource(TextSourceConfig(sequence_length=LENGTH, sources=sources[:2], cache_dir=cache))
    assert two.fingerprint != task.fingerprint


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["embedded"], "two or more different"),
        (["embedded", "embedded"], "two or more different"),
        (["embedded", "files"], "'files' is unknown"),
    ],
)
def test_sources_that_make_no_classes_are_refused(sources, message):
    with pytest.raises(ValueError, match=message):
        TextSourceConfig(sources=sources)


def test_windows_that_do_not_fit_are_refused(cache):
    with pytest.raises(DataError, match="sequence_length=1000000"):
        TextSource(TextSourceConfig(sequence_length=1_000_000, cache_dir=cache))
    with pytest.raises(ValueError, match="sequence_length=1"):
        TextSourceConfig(sequence_length=1)
