"""From text to token ids and back: the settings of a tokenizer, its contract, and bytes as tokens.

``bpe_tokenizer`` and ``folder_tokenizer`` hold the other kinds, ``make_tokenizer`` chooses between them.

Four stages, each named in the config: normalization, pre-tokenization, the
model, post-processing. Ids are laid out as in ``Vocabulary``: symbols, then
pad, bos, eos, mask, then the sentinels. Every symbol stands for known bytes,
so bits per byte does not depend on the tokenizer.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers

from experiments.data.tokenizers.vocabulary import Vocabulary
from experiments.runtime.errors import nearest

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
    """``bytes`` (256 symbols, nothing to train), ``bpe`` (byte-level, trained on the training split) or
    ``folder`` (the tokenizer of a Hugging Face folder or of a run, as it is)."""
    path: str | None = None
    """The folder with its tokenizer.json (folder only)."""
    normalization: list[str] = field(default_factory=list)
    """Stage 1, in order: nfc, nfd, nfkc, nfkd, lowercase, strip_accents. Empty changes nothing."""
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
                f"tokenizer.path={self.path} with tokenizer.kind={self.kind}: the kind 'folder' needs one, "
                "no other kind takes one"
            )
        if self.kind == "folder" and self.normalization:
            raise ValueError(
                f"tokenizer.normalization={self.normalization}: a folder's tokenizer has its own; leave it []"
            )
        _check("normalization", self.normalization, _NORMALIZERS)
        _check("pre_tokenization", self.pre_tokenization, PRE_TOKENIZATION)
        _check("post_processing", self.post_processing, ("bos", "eos"))
        if "byte_level" in self.pre_tokenization[:-1]:
            raise ValueError(f"tokenizer.pre_tokenization={self.pre_tokenization}: byte_level must come last")
        if self.vocab_size < 256:
            raise ValueError(f"tokenizer.vocab_size={self.vocab_size} must hold the 256 bytes at least")


def _check(key: str, values: Sequence[str], known: Iterable[str]) -> None:
    names = list(known)
    for value in values:
        if value not in names:
            raise ValueError(f"tokenizer.{key}: '{value}' is unknown{nearest(value, names)}")


class TextTokenizer(ABC):
    """Contract of the tokenizers of text tasks."""

    vocabulary: Vocabulary
    token_bytes: list[bytes]
    """The UTF-8 bytes of text behind each token id; empty for special tokens."""

    @abstractmethod
    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """Token ids of whole documents, post-processing included."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, without bos or eos. Special tokens cannot be written in text."""

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt, with all that its model is to read: here the text alone, because the
        objective begins it. The tokenizer of a folder writes special tokens by its own rules."""
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
        """The text behind tokens; special tokens vanish, bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes[int(t)] for t in tokens).decode("utf-8", errors="replace")

    @property
    def fingerprint(self) -> str:
        """Identifies what each id stands for: weights of one tokenizer mean nothing to another."""
        return hashlib.sha256(repr(self.token_bytes).encode()).hexdigest()[:16]

    @property
    def bytes_per_token(self) -> NDArray[np.int64]:
        """Number of bytes behind each token id, shape (V,)."""
        return np.array([len(b) for b in self.token_bytes], dtype=np.int64)


class ByteTokenizer(TextTokenizer):
    """UTF-8 bytes as symbols."""

    def __init__(self, config: TokenizerConfig, num_sentinels: int) -> None:
        self.vocabulary = Vocabulary(num_symbols=256, num_sentinels=num_sentinels)
        self.token_bytes = [bytes([b]) for b in range(256)] + [b""] * (4 + num_sentinels)
        self._normalizer = make_normalizer(config)
        bos, eos = [self.vocabulary.bos], [self.vocabulary.eos]
        self._before = np.array(bos if "bos" in config.post_processing else [], dtype=np.uint16)
        self._after = np.array(eos if "eos" in config.post_processing else [], dtype=np.uint16)

    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        return [np.concatenate([self._before, self._symbols(text), self._after]) for text in texts]

    def encode(self, text: str) -> list[int]:
        return self._symbols(text).tolist()

    def save(self, folder: Path) -> None:
        pass  # nothing is learned

    def _symbols(self, text: str) -> NDArray[np.uint8]:
        normalized = self._normalizer.normalize_str(text) if self._normalizer else text
        return np.frombuffer(normalized.encode(), dtype=np.uint8)


def make_normalizer(config: TokenizerConfig) -> normalizers.Normalizer | None:
    stages = [_NORMALIZERS[name]() for name in config.normalization]
    return normalizers.Sequence(stages) if stages else None
