"""From text to token ids and back: the settings of a tokenizer, its contract, and bytes as tokens.

``bpe`` and ``folder_tokenizer`` have the other types, ``make_tokenizer`` chooses between them.

Four stages, each named in the config: normalization, pre-tokenization, the
model, post-processing. Ids are laid out as in ``Vocabulary``: symbols, then
pad, bos, eos, mask, then the sentinels. Bits per byte divide by the bytes of the
input text of the tokenizer (``TokenizedText``), not by those of token names.

Shapes: V vocabulary, N tokens of a text, C characters, R runs of tokens.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.errors import DataError, nearest


@dataclass(frozen=True, kw_only=True)
class TokenizedText:
    """The tokens of a text."""

    tokens_N: NDArray[np.integer]
    """Token ids, bos and eos included where the tokenizer adds them."""
    bytes_N: NDArray[np.integer]
    """Bytes of the text, in UTF-8, of each token. They sum to the bytes of the text, unless it
    has no token."""
    lossless: bool
    """True if decoding the tokens gives the text back."""


def tokenize_with_offsets(
    tokenizer: HFTokenizer,
    texts: Sequence[str],
    decode: Callable[[Iterable[int]], str],
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
) -> list[TokenizedText]:
    """Tokenize texts, and count the bytes of each token by its offsets in the text.

    Args:
        tokenizer: of the ``tokenizers`` package.
        texts: any text.
        decode: from tokens back to text.
        prefix: special tokens that precede each text.
        suffix: special tokens that follow each text.

    Raises:
        DataError: the package fails on a text.
    """
    try:
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    except BaseException as error:  # a panic of its Rust code is no Exception
        if type(error).__name__ not in ("PanicException", "Exception"):
            raise
        raise DataError(f"the tokenizer fails on a text ({error}): mend its tokenizer.json") from None
    tokenized = []
    for text, encoding in zip(texts, encodings, strict=True):
        bytes_N = np.zeros(len(prefix) + len(encoding) + len(suffix), dtype=np.int64)
        if len(encoding):
            bytes_N[len(prefix) :][: len(encoding)] = bytes_of_tokens(text, encoding.offsets)
        else:
            bytes_N[:1] = len(text.encode())
        tokens_N = np.array([*prefix, *encoding.ids, *suffix], dtype=np.uint32)
        lossless = decode(encoding.ids) == text
        tokenized.append(TokenizedText(tokens_N=tokens_N, bytes_N=bytes_N, lossless=lossless))
    return tokenized


def bytes_of_tokens(text: str, spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the bytes of a text for each of its tokens (N,); they sum to the bytes of the text.

    Characters that no span covers, such as white space that a pre-tokenizer drops, belong to the token that
    follows, or to the last one. Tokens with equal spans, such as the bytes of a character, share its
    bytes evenly.

    Args:
        text: any text.
        spans: first character and end of each token, at least one.
    """
    span_N2 = np.array(spans, dtype=np.int64)
    code_C = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    bytes_C = 1 + (code_C >= 0x80) + (code_C >= 0x800) + (code_C >= 0x10000)
    byte_at = np.concatenate([[0], np.cumsum(bytes_C)])  # of each character, and of the end
    end_N = np.maximum.accumulate(byte_at[span_N2[:, 1]])
    end_N[-1] = byte_at[-1]

    opens_N = np.ones(len(spans), dtype=bool)
    opens_N[1:] = (span_N2[1:] != span_N2[:-1]).any(1)
    first_R = np.flatnonzero(opens_N)
    size_R = np.diff(first_R, append=len(spans))
    end_R = end_N[first_R + size_R - 1]
    begin_R = np.concatenate([[0], end_R[:-1]])
    run_N = opens_N.cumsum() - 1
    number_N = np.arange(len(spans)) - first_R[run_N] + 1
    shared_end_N = begin_R[run_N] + (end_R - begin_R)[run_N] * number_N // size_R[run_N]
    return np.diff(shared_end_N, prepend=0)


def byte_level_alphabet() -> dict[str, int]:
    """The byte that each printable character represents in byte-level BPE (Radford et al. 2019).

    Printable Latin-1 characters represent themselves; the other bytes are represented
    by characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


PRE_TOKENIZATION = ("whitespace", "digits", "byte_level")
_NORMALIZERS = {
    "nfc": normalizers.NFC,
    "nfd": normalizers.NFD,
    "nfkc": normalizers.NFKC,
    "nfkd": normalizers.NFKD,
    "lowercase": normalizers.Lowercase,
    "strip_accents": normalizers.StripAccents,
}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The four stages of a tokenizer."""

    kind: str = "bytes"
    """``bytes`` (256 symbols, not trained), ``bpe`` (byte-level, trained on the training split) or
    ``folder`` (the tokenizer of a Hugging Face folder or of a run)."""
    path: str | None = None
    """The folder with its tokenizer.json (folder only)."""
    normalization: list[str] = field(default_factory=list)
    """Stage 1, in order: nfc, nfd, nfkc, nfkd, lowercase, strip_accents. Empty for none. What a
    normalization changes is lost, so that bits per byte are not comparable with those of other tokenizers."""
    pre_tokenization: list[str] = field(default_factory=lambda: ["byte_level"])
    """Stage 2, in order (bpe only): whitespace, digits, byte_level. Merges never cross a cut."""
    vocab_size: int = 4096
    """Stage 3 (bpe only): symbols the model has, special tokens not counted; at least 256."""
    post_processing: list[str] = field(default_factory=lambda: ["eos"])
    """Stage 4: ``bos`` before and ``eos`` after each document."""

    def __post_init__(self) -> None:
        _check("kind", [self.kind], ("bytes", "bpe", "folder"))
        if (self.kind == "folder") != (self.path is not None):
            raise ValueError(
                f"task.tokenizer.path={self.path} with task.tokenizer.kind={self.kind}: kind=folder needs "
                "one, and no other takes one"
            )
        if self.kind == "folder" and self.normalization:
            raise ValueError(
                f"task.tokenizer.normalization={self.normalization}: a folder's tokenizer has its own; leave "
                "it []"
            )
        _check("normalization", self.normalization, _NORMALIZERS)
        _check("pre_tokenization", self.pre_tokenization, PRE_TOKENIZATION)
        _check("post_processing", self.post_processing, ("bos", "eos"))
        if "byte_level" in self.pre_tokenization[:-1]:
            raise ValueError(
                f"task.tokenizer.pre_tokenization={self.pre_tokenization}: byte_level must come last"
            )
        if self.vocab_size < 256:
            raise ValueError(f"task.tokenizer.vocab_size={self.vocab_size} must hold the 256 bytes at least")


def _check(key: str, values: Sequence[str], valid: Iterable[str]) -> None:
    names = list(valid)
    for value in values:
        if value not in names:
            raise ValueError(f"task.tokenizer.{key}: '{value}' is unknown{nearest(value, names)}")


class TextTokenizer(ABC):
    """Contract of the tokenizers of text tasks."""

    vocabulary: Vocabulary
    token_bytes: list[bytes]
    """The bytes that spell each token id; empty for special tokens. A text that is normalized, or encoded by
    the tokenizer of a folder, need not have these bytes."""
    fixed_bytes_V: NDArray[np.uint32] | None = None
    """Bytes of text of each token id, where they are the same in every text; None where they depend on
    the text. Where they are fixed, the tokenizer is lossless."""
    unknown: int | None = None
    """The id of unknown words; None without one."""

    @abstractmethod
    def encode_documents(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Tokens of complete documents, post-processing included."""

    def lossless_text(self, tokens_N: NDArray[np.integer]) -> TokenizedText:
        """Return the tokens of a text with the fixed number of bytes of each."""
        assert self.fixed_bytes_V is not None
        return TokenizedText(tokens_N=tokens_N, bytes_N=self.fixed_bytes_V[tokens_N], lossless=True)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, without bos or eos. Special tokens cannot be written in text."""

    def check_known(self, count_V: NDArray[np.int64], split: str) -> None:
        """Raise DataError where all tokens of a split are unknown or special.

        Args:
            count_V: how often each token occurs in it.
            split: its name.
        """
        known_V = self.vocabulary.is_symbol().numpy()
        if self.unknown is not None:
            known_V[self.unknown] = False
        if not count_V[known_V].any():
            raise DataError(
                f"the tokenizer knows no word of the {split} split: all of its {count_V.sum()} tokens are "
                "unknown or special: choose a tokenizer made for such text"
            )

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt, with all that its model reads: here only the text, because the objective
        adds the begin token. The tokenizer of a folder adds special tokens by its rules."""
        return self.encode(text)

    def frame(self, parts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Return one or two encoded texts between special tokens, and the segment of each token.

        ``[bos] a [eos]`` or ``[bos] a [eos] b [eos]``, BERT's form with bos for CLS and eos for SEP.
        """
        tokens, segments = [self.vocabulary.bos], [0]
        for segment, part in enumerate(parts):
            tokens += [*part, self.vocabulary.eos]
            segments += [segment] * (len(part) + 1)
        return tokens, segments

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes into ``folder`` what was learned from the training text, if anything was."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; special tokens are dropped, bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes[int(t)] for t in tokens).decode("utf-8", errors="replace")

    @property
    def fingerprint(self) -> str:
        """Identifies the meaning of ids: weights are only valid with one tokenizer."""
        return hashlib.sha256(repr(self.token_bytes).encode()).hexdigest()[:16]


class ByteTokenizer(TextTokenizer):
    """UTF-8 bytes as symbols: of the text, or of what its normalization makes of it."""

    def __init__(self, config: TokenizerConfig, num_sentinels: int) -> None:
        self.vocabulary = Vocabulary(num_symbols=256, num_sentinels=num_sentinels)
        self.token_bytes = [bytes([b]) for b in range(256)] + [b""] * (4 + num_sentinels)
        self._normalizer = make_normalizer(config)
        if self._normalizer is None:
            self.fixed_bytes_V = np.array([len(b) for b in self.token_bytes], dtype=np.uint32)
        self._before = [self.vocabulary.bos] if "bos" in config.post_processing else []
        self._after = [self.vocabulary.eos] if "eos" in config.post_processing else []

    def encode_documents(self, texts: Sequence[str]) -> list[TokenizedText]:
        if self._normalizer is not None:
            # A tokenizer of the package with bytes as ids: it has their offsets before normalization.
            aligned = HFTokenizer(models.BPE(byte_level_alphabet(), []))
            aligned.normalizer = self._normalizer  # type: ignore[assignment]
            aligned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
            return tokenize_with_offsets(aligned, texts, self.decode, self._before, self._after)
        before_N, after_N = (np.array(ids, dtype=np.uint16) for ids in (self._before, self._after))
        return [
            self.lossless_text(np.concatenate([before_N, np.frombuffer(text.encode(), np.uint8), after_N]))
            for text in texts
        ]

    def encode(self, text: str) -> list[int]:
        normalized = self._normalizer.normalize_str(text) if self._normalizer else text
        return list(normalized.encode())

    def save(self, folder: Path) -> None:
        pass  # without training


def make_normalizer(config: TokenizerConfig) -> normalizers.Normalizer | None:
    stages = [_NORMALIZERS[name]() for name in config.normalization]
    return normalizers.Sequence(stages) if stages else None
