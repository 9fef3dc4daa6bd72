"""Random tokenizers of the ``tokenizers`` package, as folders, and random texts that they may trip over."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PIECES = (
    "the", "cat", "sat", "Foo", "bar(", "x_1", "42", "3.14", "Straße", "naïve", "İstanbul", "ΑΣ", "Ⅳ",
    "ﬁne", "漢字", "かな", "한국", "עברית", "🙂", "👩\u200d👩\u200d👧", "🇩🇪", "e\u0301", "\u0301",
    "a\u0323\u0307", "…", " ", " ", " ", "  ", "      ", "\t", "\n", "\r\n", "\u00a0", "\u2028",
    "\u3000", "\ufeff", "\u200b", "\ufffd", ".", ",", "!?", "//", "[UNK]", "<unk>", "<x>", "</s>", "▁",
    "##s", "Ġ", "<0x41>", "\U0010ffff", "\x01",
)  # fmt: skip
"""Parts of random texts: scripts, compositions, every kind of space, and what tokenizers mark things with."""

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def random_text(rng: random.Random) -> str:
    """Return a text of up to 60 parts, now and then of a few of them alone."""
    known = rng.choices(PIECES, k=3) if rng.random() < 0.2 else PIECES
    return "".join(rng.choices(known, k=rng.choice((1, 2, 5, 20, 60))))


def random_folder(rng: random.Random, folder: Path) -> str:
    """Write the folder of a random tokenizer; return its settings in words."""
    tokenizer = Tokenizer(rng.choice(MODELS)(rng))
    for part, kinds in (
        ("normalizer", NORMALIZERS),
        ("pre_tokenizer", PRE_TOKENIZERS),
        ("decoder", DECODERS),
    ):
        if rng.random() < 0.8:
            setattr(tokenizer, part, rng.choice(kinds)())
    if rng.random() < 0.3:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=rng.random() < 0.5)  # type: ignore[assignment]
    specials = rng.sample(["[UNK]", "<unk>", "<s>", "[MASK]"], rng.randrange(5))
    tokenizer.add_special_tokens(["</s>", *specials])
    for content in rng.sample(["<x>", "the", "漢", "  ", "Foo bar"], rng.randrange(4)):
        options = ("lstrip", "rstrip", "single_word", "normalized")
        tokenizer.add_tokens([AddedToken(content, **{name: rng.random() < 0.4 for name in options})])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    described = json.loads(tokenizer.to_str())
    del described["model"]["vocab"]
    return json.dumps({key: value for key, value in described.items() if value}, ensure_ascii=False)


def _vocabulary(rng: random.Random, *first: str, prefix: str = "") -> dict[str, int]:
    """Return tokens with their ids: characters, of which some lack, and words."""
    characters = sorted(set("".join(PIECES)) - ({"▁"} if rng.random() < 0.3 else set()))
    chosen = rng.sample(characters, rng.randint(len(characters) // 2, len(characters)))
    words = [piece for piece in PIECES if rng.random() < 0.5]
    continued = [prefix + token for token in (*chosen, *words)] if prefix else []
    return {token: i for i, token in enumerate(dict.fromkeys([*first, *chosen, *words, *continued]))}


def _merges(rng: random.Random, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return merges of some pairs of tokens, whose results are added to the vocabulary."""
    found = []
    for _ in range(rng.randrange(30)):
        pair = tuple(rng.choices([token for token in vocabulary if not token.startswith("<0x")], k=2))
        if pair[0] + pair[1] not in vocabulary:
            vocabulary[pair[0] + pair[1]] = len(vocabulary)
            found.append((pair[0], pair[1]))
    return found


def _byte_level(rng: random.Random) -> models.Model:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    return models.BPE(vocabulary, _merges(rng, vocabulary))


def _characters(rng: random.Random) -> models.Model:
    fallback = rng.random() < 0.5
    vocabulary = _vocabulary(rng, "<unk>", *(BYTES if fallback else ()))
    merges = _merges(rng, vocabulary)
    unknown = {"unk_token": "<unk>", "fuse_unk": rng.random() < 0.5} if rng.random() < 0.7 else {}
    return models.BPE(vocabulary, merges, byte_fallback=fallback, **unknown)  # type: ignore[arg-type]


def _unigram(rng: random.Random) -> models.Model:
    fallback = rng.random() < 0.5
    tokens = _vocabulary(rng, "<unk>", "▁", *(BYTES if fallback else ()))
    return models.Unigram([(token, -rng.random() * 9) for token in tokens], 0, fallback)


def _word_piece(rng: random.Random) -> models.Model:
    vocabulary = _vocabulary(rng, "[UNK]", prefix="##")
    return models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=rng.choice((5, 100)))


def _word_level(rng: random.Random) -> models.Model:
    return models.WordLevel(_vocabulary(rng, "[UNK]"), unk_token="[UNK]")


MODELS: tuple[Callable[[random.Random], Any], ...] = (
    _byte_level, _byte_level, _characters, _unigram, _word_piece, _word_level,
)  # fmt: skip
NORMALIZERS: tuple[Callable[[], Any], ...] = (
    normalizers.NFC,
    normalizers.NFD,
    normalizers.NFKC,
    normalizers.NFKD,
    normalizers.Lowercase,
    normalizers.Nmt,
    normalizers.Strip,
    normalizers.BertNormalizer,
    lambda: normalizers.Replace(Regex(r"\s+"), " "),
    lambda: normalizers.Replace(" ", "▁"),
    lambda: normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    lambda: normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
    normalizers.ByteLevel,
)
PRE_TOKENIZERS: tuple[Callable[[], Any], ...] = (
    pre_tokenizers.Whitespace,
    pre_tokenizers.WhitespaceSplit,
    pre_tokenizers.BertPreTokenizer,
    pre_tokenizers.Punctuation,
    pre_tokenizers.UnicodeScripts,
    pre_tokenizers.Metaspace,
    lambda: pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
    lambda: pre_tokenizers.Digits(individual_digits=True),
    lambda: pre_tokenizers.CharDelimiterSplit("a"),
    lambda: pre_tokenizers.Split("", "isolated"),
    lambda: pre_tokenizers.Split(Regex(r"\s"), "removed"),
    lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
)
DECODERS: tuple[Callable[[], Any], ...] = (
    decoders.ByteLevel,
    decoders.WordPiece,
    decoders.Metaspace,
    decoders.Fuse,
    lambda: decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
)
