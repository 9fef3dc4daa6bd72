from collections import Counter

import numpy as np
import pytest
import torch

from archbench.experiments.config.structured import typed
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.text.text import Text, TextConfig
from tests import ROOT

CONF = ROOT / "conf" / "task"
LENGTH = 20
TRAIN = " ".join(f"{i:04d}" for i in range(1000)).encode()
"""Text in which every window tells its place; with eos, 5000 tokens: 250 windows."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_bytes(TRAIN)
    (folder / "validation.txt").write_text("".join(f"{i:04d}-" for i in range(61)))
    (folder / "test.txt").write_text("".join(f"{i:04d}+" for i in range(81)))
    return folder


def make(folder, **changes):
    settings = {
        "source": "files",
        "paths": [str(folder / "train.txt")],
        "validation_paths": [str(folder / "validation.txt")],
        "test_paths": [str(folder / "test.txt")],
        "sequence_length": LENGTH,
        "cache_dir": str(folder / "cache"),
    }
    return Text(TextConfig(**(settings | changes)))


@pytest.fixture(scope="module")
def text(folder):
    return make(folder)


def rows(task, split, seed, start, count):
    return [tuple(row) for row in task.batch(split, seed, start, count).tokens_BT.tolist()]


def test_an_epoch_shows_every_training_token_once(text):
    assert text.num_examples("train") == 250
    for epoch in range(3):
        windows = rows(text, "train", 7, 250 * epoch, 250)
        assert len(set(windows)) == 250
        assert Counter(t for window in windows for t in window) == Counter([*TRAIN, 258])
        straight = [bytes(w) for w in windows if 258 not in w]
        assert len(straight) >= 249  # one window may run over the end of the text
        assert all(window in TRAIN for window in straight)


def test_epochs_and_seeds_differ_in_order_and_in_borders(text):
    def borders(seed, epoch):
        """Where windows begin, modulo their length, from the number they show."""
        first = next(w for w in rows(text, "train", seed, 250 * epoch, 250) if 258 not in w)
        return TRAIN.index(bytes(first)) % LENGTH

    assert len({borders(seed, epoch) for seed in range(4) for epoch in range(4)}) > 4
    orders = {tuple(rows(text, "train", seed, 250 * epoch, 5)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    begins = [TRAIN.index(bytes(w)) for w in rows(text, "train", 0, 0, 250) if 258 not in w]
    assert np.mean(np.diff(begins) == LENGTH) < 0.1  # neighbours of the text are no neighbours here


def test_every_epoch_is_shuffled_anew(text):
    """Whatever the borders of its windows are."""
    orders = {
        tuple(text._train_windows(7, 250 * epoch + np.arange(250)).argsort().tolist()) for epoch in range(3)
    }
    assert len(orders) == 3


def test_a_batch_is_a_pure_function_and_may_span_epochs(folder, text):
    together = rows(text, "train", 3, 240, 300)  # epochs 0, 1 and 2
    assert together == [row for i in range(300) for row in rows(text, "train", 3, 240 + i, 1)]
    assert together == rows(make(folder), "train", 3, 240, 300)
    assert rows(text, "train", 3, 10**12, 4) == rows(text, "train", 3, 10**12, 4)


def places(task, folder, split, batch):
    """The first token of each window in the stream of the split."""
    stream = [*(folder / f"{split}.txt").read_bytes(), task.vocabulary.eos]
    windows = batch.tokens_BT.tolist()
    begins = {tuple(stream[i : i + LENGTH]): i for i in range(len(stream) - LENGTH + 1)}
    return [begins[tuple(window)] for window in windows]


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(("stride", "tokens"), [("half", 10), (None, 20), (1, 1), (7, 7)])
def test_every_held_out_token_is_scored_once_with_the_context_there_is(folder, split, stride, tokens):
    task = make(folder, stride=stride)
    windows, length = task.num_examples(split), len((folder / f"{split}.txt").read_bytes()) + 1
    batch = task.batch(split, 5, 0, windows)
    begins = places(task, folder, split, batch)
    scored = [
        begin + t
        for begin, row in zip(begins, batch.answer_BT.tolist(), strict=True)
        for t in range(LENGTH)
        if row[t]
    ]
    assert sorted(scored) == list(range(length))
    for begin, row in zip(begins, batch.answer_BT.tolist(), strict=True):
        assert begin == 0 or row.index(True) >= LENGTH - tokens
        assert all(row[row.index(True) :])
    assert batch.valid_BT.all()


def test_the_first_held_out_windows_are_a_sample_of_the_whole_split_whatever_the_seed(folder, text):
    windows = text.num_examples("test")
    assert rows(text, "test", 6, 3, 5) == rows(text, "test", 5, 0, windows)[3:8]
    begins = places(text, folder, "test", text.batch("test", 0, 0, windows))
    assert sorted(begins) == [*range(0, 10 * windows - 10, 10), 386]
    assert begins[: windows // 2] != sorted(begins)[: windows // 2]
    assert max(begins[: windows // 4]) > 200  # not the beginning of the split
    with pytest.raises(ValueError, match=f"the test split has {windows} windows"):
        text.batch("test", 5, windows - 1, 2)


def test_windows_belong_to_documents_or_to_passages_where_there_is_but_one(tmp_path, folder):
    for split in ("train", "validation", "test"):
        for number, size in enumerate((30, 5, 70)):
            letter = "abc"[number] if split == "train" else str(number)
            (tmp_path / f"{split}{number}.txt").write_text(letter * size)
    settings = {
        "paths": [str(tmp_path / "train*.txt")],
        "validation_paths": [str(tmp_path / "validation*.txt")],
        "test_paths": [str(tmp_path / "test*.txt")],
        "cache_dir": str(tmp_path / "cache"),
    }
    task = make(folder, **settings)
    assert task.clustered_by("test") == "document"
    batch = task.batch("test", 0, 0, task.num_examples("test"))
    for row, scored, document in zip(batch.tokens_BT, batch.answer_BT, batch.cluster_B, strict=True):
        first = int(row[scored][0])
        assert first in (258, ord("0") + int(document))  # or the end token of a document
    single = make(folder)
    assert single.clustered_by("test") == "passage of 1,024 tokens"
    assert single.batch("test", 0, 0, 5).cluster_B.tolist() == [0] * 5
    assert single.batch("train", 0, 0, 5).cluster_B is None


def test_a_batch_is_whole_text_with_its_bytes(folder):
    task = make(folder, stride=None)
    for split in ("train", "validation", "test"):
        batch = task.batch(split, 0, 0, 15)
        assert batch.whole
        assert batch.tokens_BT.shape == (15, LENGTH)
        assert batch.tokens_BT.dtype == torch.int64
        assert torch.equal(batch.context_BT, batch.tokens_BT)
        assert batch.valid_BT.all()
        assert batch.answer_BT.sum() >= 14 * LENGTH  # of the last window only what is new
        assert torch.equal(batch.bytes_BT, (batch.tokens_BT < 256).long())


def test_bytes_of_the_windows_add_up_whatever_the_tokenizer(folder):
    for tokenizer in (TokenizerConfig(), TokenizerConfig(kind="bpe", vocab_size=300)):
        task = make(folder, tokenizer=tokenizer, sequence_length=3)
        batch = task.batch("test", 0, 0, task.num_examples("test"))
        assert batch.bytes_BT[batch.answer_BT].sum() == 81 * 5


def test_the_fingerprint_follows_tokens_and_window(folder, text):
    assert make(folder).fingerprint == text.fingerprint
    assert len(text.fingerprint) == 16
    others = [make(folder, sequence_length=LENGTH + 1), make(folder, num_sentinels=27)]
    assert len({text.fingerprint, *(task.fingerprint for task in others)}) == 3


def test_a_part_of_the_text_is_passages_from_all_over_it_the_same_for_every_seed(folder, text):
    """Five passages of 1,024 tokens (the last shorter), in a fixed order."""
    parts = {limit: make(folder, train_tokens=limit) for limit in (100, 1500, 3000, 5000, 10_000)}
    sets = {}
    for limit, task in parts.items():
        count = task.num_examples("train")
        assert count == min(limit, 5000) // LENGTH
        orders = [rows(task, "train", seed, 0, count) for seed in (0, 1)]
        assert orders[0] != orders[1]  # windows are cut and ordered by the seed
        sets[limit] = bytes(t % 256 for t in task._streams["train"].tokens_N.tolist())
        assert len(sets[limit]) == min(limit, 5000)
        assert rows(task, "test", 0, 0, 20) == rows(text, "test", 0, 0, 20)
    for less, more in ((100, 1500), (1500, 3000), (3000, 5000)):
        assert sets[more].startswith(sets[less])
    assert sets[5000] == sets[10_000]
    whole = bytes(t % 256 for t in text._streams["train"].tokens_N.tolist())
    assert sorted(sets[5000]) == sorted(whole)
    assert sets[5000] != whole  # not simply its beginning


def test_the_fingerprint_and_the_reference_lines_follow_the_part(folder, text):
    few, many = make(folder, train_tokens=100), make(folder, train_tokens=4000)
    assert len({text.fingerprint, few.fingerprint, many.fingerprint}) == 3
    unigram = {name: task.references()[1].value for name, task in (("few", few), ("all", text))}
    assert unigram["few"] > unigram["all"]
    names = [f"{n}, 100 training tokens" for n in ("unigram", "bigram", "5-gram", "xz")]
    assert [r.name for r in few.references()] == ["uniform", *names]
    assert {r.split for r in few.references()} == {"test"}
    assert few.references()[0].value == pytest.approx(np.log2(288) * 406 / 405)
    everything = [r.value for r in make(folder, train_tokens=5000).references()]
    assert everything[0] == pytest.approx(text.references()[0].value)


def test_text_goes_in_and_comes_out(text):
    assert text.vocabulary.size == 288
    assert text.encode("né") == [*"né".encode()]
    assert text.decode([*"né".encode(), text.vocabulary.eos, text.vocabulary.mask]) == "né"


def test_a_split_shorter_than_a_window_is_refused(folder):
    with pytest.raises(DataError, match="validation split has 306 tokens, fewer than sequence_length=307"):
        make(folder, sequence_length=307)


@pytest.mark.parametrize(
    "changes",
    [{"sequence_length": 1}, {"num_sentinels": -1}, {"source": "fils"}, {"train_tokens": LENGTH - 1}],
)
def test_impossible_settings_are_refused(folder, changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        make(folder, **changes)


def test_references_of_english_are_ordered_and_do_not_depend_on_the_window(tmp_path):
    config = TextConfig(source="embedded_reference", cache_dir=str(tmp_path))
    references = {r.name: r for r in Text(config).references()}
    assert 0.5 < references["xz"].value < references["unigram"].value < 6
    assert {r.metric for r in references.values()} == {"bits_per_byte"}
    longer = Text(TextConfig(source="embedded_reference", cache_dir=str(tmp_path), sequence_length=512))
    assert [r.value for r in longer.references()] == [r.value for r in references.values()]


def test_settings_reach_the_tokenizer():
    tokenizer = {"kind": "bpe", "normalization": ["nfc"]}
    config = typed(TextConfig, {"sequence_length": 64, "tokenizer": tokenizer}, "task")
    expected = TokenizerConfig(kind="bpe", normalization=["nfc"])
    assert config == TextConfig(sequence_length=64, tokenizer=expected)


def test_words_are_those_of_the_split_or_of_the_published_one(folder, tmp_path):
    paths = {}
    for split, text in (("train", "a b\n c  d"), ("validation", "one two three"), ("test", "é à la carte")):
        (tmp_path / f"{split}.txt").write_text(text)
        paths[split] = [str(tmp_path / f"{split}.txt")]
    settings = {
        "paths": paths["train"],
        "validation_paths": paths["validation"],
        "test_paths": paths["test"],
        "sequence_length": 4,
        "cache_dir": str(tmp_path / "cache"),
    }
    task = make(folder, **settings)
    assert [task.words_per_byte(s) for s in ("train", "validation", "test")] == [4 / 9, 3 / 13, 4 / 14]
    published = make(folder, **settings, test_words=7)
    assert published.words_per_byte("test") == 7 / 14
    assert published.words_per_byte("validation") == 3 / 13


def test_words_are_counted_alike_in_pieces(folder, text, monkeypatch):
    whole = [text.words_per_byte(split) for split in ("train", "test")]
    monkeypatch.setattr("archbench.experiments.tasks.text.text._CHUNK", 7)
    assert [text.words_per_byte(split) for split in ("train", "test")] == whole


def test_a_stride_or_words_that_cannot_be_are_refused():
    for settings, message in (
        ({"stride": 0}, "stride=0 must be from 1 to sequence_length=256"),
        ({"stride": 300}, "stride=300 must be from 1 to"),
        ({"stride": "third"}, "stride='third' must be a number of tokens, half, or null"),
        ({"test_words": 0}, "test_words=0 must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            TextConfig(**settings)
