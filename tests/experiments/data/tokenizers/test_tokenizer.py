import random

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from archbench.experiments.data.tokenizers import bpe
from archbench.experiments.data.tokenizers.make_tokenizer import load_tokenizer, train_tokenizer
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig, byte_level_alphabet
from archbench.experiments.runtime.errors import DataError

TRAIN = [f"def function_{i}(x): return x + {i}  # the value of the function\n" for i in range(200)]


def make(texts=TRAIN, num_sentinels=5, **settings):
    return train_tokenizer(TokenizerConfig(**settings), num_sentinels, iter(texts))


def strange_texts():
    """Text a tokenizer may trip over: every kind of space, emoji, controls, the names of special tokens."""
    rng = random.Random(0)
    alphabet = [chr(c) for c in range(0x250)] + list("  \n\t\r漢字🙂👩‍👩‍👧\u0301\ufeff\u2028\u00a0\U0010ffff")
    random_texts = ["".join(rng.choices(alphabet, k=rng.randrange(200))) for _ in range(100)]
    return [*TRAIN, *random_texts, "", " ", "⟨eos⟩⟨pad⟩ <eos> ⟨sentinel 0⟩ ⟨eos⟩"]


PIPELINES = [
    {"kind": "bytes"},
    {"kind": "bpe", "vocab_size": 280},
    {"kind": "bpe", "vocab_size": 280, "pre_tokenization": []},
    {"kind": "bpe", "vocab_size": 280, "pre_tokenization": ["whitespace", "digits"]},
    {"kind": "bpe", "vocab_size": 256, "pre_tokenization": ["digits", "byte_level"]},
]


@pytest.mark.parametrize("settings", PIPELINES)
def test_nothing_is_lost_and_every_byte_is_counted_once(settings):
    tokenizer = make(**settings)
    texts = strange_texts()
    for text, tokenized in zip(texts, tokenizer.encode_documents(texts), strict=True):
        ids = tokenized.tokens_N
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenized.lossless
        assert tokenized.bytes_N.tolist() == [len(tokenizer.token_bytes[i]) for i in ids]
        assert tokenized.bytes_N.sum() == len(text.encode())
        assert ids.tolist() == [*tokenizer.encode(text), tokenizer.vocabulary.eos]
        assert ids[:-1].max(initial=0) < tokenizer.vocabulary.num_symbols


@pytest.mark.parametrize("settings", PIPELINES)
def test_ids_are_laid_out_as_in_the_vocabulary(settings):
    tokenizer = make(**settings, post_processing=["bos", "eos"])
    v = tokenizer.vocabulary
    assert v.num_symbols == settings.get("vocab_size", 256)
    assert v.size == v.num_symbols + 4 + 5
    assert len(tokenizer.token_bytes) == v.size
    assert (tokenizer.fixed_bytes_V[: v.num_symbols] >= 1).all()
    assert (tokenizer.fixed_bytes_V[v.num_symbols :] == 0).all()
    ids = tokenizer.encode_documents(["x"])[0].tokens_N.tolist()
    assert ids == [v.bos, *tokenizer.encode("x"), v.eos]
    assert make(**settings, post_processing=[]).encode_documents(["x"])[0].tokens_N.tolist() == ids[1:-1]


def test_the_saved_bpe_names_the_special_tokens_at_their_ids(tmp_path):
    tokenizer = make(kind="bpe", vocab_size=280)
    tokenizer.save(tmp_path)
    inner = tokenizer._tokenizer
    v = tokenizer.vocabulary
    names = {"⟨pad⟩": v.pad, "⟨bos⟩": v.bos, "⟨eos⟩": v.eos, "⟨mask⟩": v.mask, "⟨sentinel 0⟩": v.size - 1,
             "⟨sentinel 4⟩": v.mask + 1}  # fmt: skip
    assert {name: inner.token_to_id(name) for name in names} == names
    loaded = load_tokenizer(TokenizerConfig(kind="bpe", vocab_size=280), 5, tmp_path)
    for text in strange_texts():
        assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.token_bytes == tokenizer.token_bytes


def test_training_is_deterministic_and_makes_tokens_of_frequent_words(tmp_path):
    texts = []
    for i in range(2):
        (tmp_path / str(i)).mkdir()
        tokenizer = make(kind="bpe", vocab_size=280)
        tokenizer.save(tmp_path / str(i))
        texts.append((tmp_path / str(i) / "tokenizer.json").read_bytes())
    assert texts[0] == texts[1]
    assert len(tokenizer.encode(" function")) == 1


def test_merges_never_cross_what_pre_tokenization_cuts():
    texts = ["ab 1234 ab 1234"] * 50
    free = make(texts, kind="bpe", vocab_size=262, pre_tokenization=[])
    assert any(b" " in t.strip() or b"12" in t for t in free.token_bytes)
    cut = make(texts, kind="bpe", vocab_size=258, pre_tokenization=["whitespace", "digits"])
    learned = cut.token_bytes[256:258]
    assert sorted(learned) == [b" ab", b"ab"]


def test_normalization_applies_in_order_and_bytes_are_those_of_the_text_before_it():
    text = "Ⅳ É e\u0301 ABC"
    for kind in ("bytes", "bpe"):
        settings = {"kind": kind, "vocab_size": 280, "normalization": ["nfkc", "lowercase"]}
        tokenizer = make(**settings, post_processing=["bos", "eos"])
        lost, kept = tokenizer.encode_documents([text, "abc"])
        v = tokenizer.vocabulary
        assert lost.tokens_N.tolist() == [v.bos, *tokenizer.encode(text), v.eos]
        assert tokenizer.decode(lost.tokens_N) == "iv é é abc"
        assert lost.bytes_N.sum() == len(text.encode()) == 14
        assert lost.bytes_N[[0, -1]].tolist() == [0, 0]
        assert (lost.lossless, kept.lossless) == (False, True)


def test_bytes_that_are_no_text_decode_to_replacement_characters():
    tokenizer = make(kind="bytes")
    assert tokenizer.decode([0xE9, 65, tokenizer.vocabulary.mask, np.int64(66)]) == "\ufffdAB"


def test_the_byte_alphabet_is_that_of_the_tokenizers_package():
    alphabet = byte_level_alphabet()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in strange_texts():
        characters = "".join(piece for piece, _ in splitter.pre_tokenize_str(text))
        assert bytes(alphabet[c] for c in characters) == text.encode()


def test_a_vocabulary_larger_than_the_text_yields_is_refused_with_the_size_it_yields():
    with pytest.raises(
        DataError, match=r"^task\.tokenizer\.vocab_size=5000: .* only 256 .*; set task\.tokenizer\.vocab_size"
    ):
        make(["ab"], kind="bpe", vocab_size=5000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "bytepair"}, r"task\.tokenizer\.kind: 'bytepair' is unknown"),
        ({"normalization": ["nfcc"]}, "did you mean 'nfc'"),
        ({"pre_tokenization": ["white_space"]}, "did you mean 'whitespace'"),
        ({"pre_tokenization": ["byte_level", "digits"]}, "byte_level must come last"),
        ({"post_processing": ["cls"]}, "'cls' is unknown"),
        ({"vocab_size": 255}, r"^task\.tokenizer\.vocab_size=255"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TokenizerConfig(**settings)


@pytest.mark.parametrize(
    "stages", [["byte_level"], ["whitespace", "digits"], ["whitespace", "digits", "byte_level"]]
)
def test_merges_of_a_long_text_are_those_of_the_whole(stages, monkeypatch):
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdeéü漢12", k=rng.randint(1, 8))) for _ in range(300)]
    spaces = [" ", " ", "\n", "  ", "\r\n", ", "]
    text = "".join(rng.choice(words) + rng.choice(spaces) for _ in range(20_000))
    config = {"kind": "bpe", "vocab_size": 400, "pre_tokenization": stages}
    whole = make([text], **config)
    monkeypatch.setattr(bpe, "LONGEST", 3000)
    assert "".join(bpe._pieces(text)) == text
    assert max(map(len, bpe._pieces(text))) <= 3000
    assert make([text], **config).token_bytes == whole.token_bytes


def test_a_long_line_without_white_space_is_learned_from_in_bounded_pieces():
    """A single word would take time quadratic in its length, and 170 bytes of memory for each character."""
    for text in ("x" * 3_000_000, " " * 3_000_000):
        pieces = list(bpe._pieces(text))
        assert max(map(len, pieces)) <= bpe.LONGEST
        assert "".join(pieces).replace("\n", "") == text
        assert max(len(word) for piece in pieces for word in [*piece.split(), ""]) <= 1000
    text = "".join(random.Random(0).choices("abcdefghij", k=2_000_000))
    assert len(make([text], kind="bpe", vocab_size=300).token_bytes) > 256
