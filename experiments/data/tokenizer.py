"""From text to token ids and back: bytes, byte-level BPE trained on the training split, a folder's tokenizer.

Four stages, each named in the config: normalization, pre-tokenization, the
model, post-processing. Ids are laid out as in ``Vocabulary``: symbols, then
pad, bos, eos, mask, then the sentinels. Every symbol stands for known bytes,
so bits per byte does not depend on the tokenizer.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HFTokenizer

from experiments.runtime.errors import DataError, nearest
from experiments.tasks.task import Vocabulary

_NORMALIZERS = {
    "nfc": normalizers.NFC,
    "nfd": normalizers.NFD,
    "nfkc": normalizers.NFKC,
    "nfkd": normalizers.NFKD,
    "lowercase": normalizers.Lowercase,
    "strip_accents": normalizers.StripAccents,
}
# "byte_level" is the pattern of GPT-2. The others keep what they cut at, so nothing is lost.
_PRE_TOKENIZERS = {
    "whitespace": lambda: pre_tokenizers.Split(Regex(r"\s+"), "merged_with_next"),
    "digits": lambda: pre_tokenizers.Digits(individual_digits=True),
    "byte_level": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
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
        _check("pre_tokenization", self.pre_tokenization, _PRE_TOKENIZERS)
        _check("post_processing", self.post_processing, ("bos", "eos"))
        if "byte_level" in self.pre_tokenization[:-1]:
            raise ValueError(f"tokenizer.pre_tokenization={self.pre_tokenization}: byte_level must come last")
        if self.vocab_size < 256:
            raise ValueError(f"tokenizer.vocab_size={self.vocab_size} must hold the 256 bytes at least")

    def description(self) -> dict[str, Any]:
        """The settings that matter for this kind."""
        if self.path is not None:
            from experiments.data.folder_tokenizer import identity  # which imports this module

            folder = identity(Path(self.path))
            return {"kind": self.kind, "folder": folder, "post_processing": self.post_processing}
        settings = asdict(self)
        del settings["path"]
        if self.kind == "bytes":
            del settings["pre_tokenization"], settings["vocab_size"]
        return settings


def _check(key: str, values: Sequence[str], known: Iterable[str]) -> None:
    names = list(known)
    for value in values:
        if value not in names:
            raise ValueError(f"tokenizer.{key}: '{value}' is unknown{nearest(value, names)}")


class TextTokenizer(ABC):
    """What the text tasks need of a tokenizer."""

    vocabulary: Vocabulary
    token_bytes: list[bytes]
    """The UTF-8 bytes of text behind each token id; empty for special tokens."""

    @abstractmethod
    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """Token ids of whole documents, post-processing included."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, without bos or eos. Special tokens cannot be written in text."""

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
        self._normalizer = _normalizer(config)
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


class BPETokenizer(TextTokenizer):
    """Byte-level BPE by the ``tokenizers`` package. Any text can be encoded; decoding gives it back."""

    def __init__(self, tokenizer: HFTokenizer, num_sentinels: int) -> None:
        self.vocabulary = Vocabulary(
            num_symbols=tokenizer.get_vocab_size() - 4 - num_sentinels, num_sentinels=num_sentinels
        )
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # "⟨eos⟩" in a text is text
        character_to_byte = byte_level_alphabet()
        self.token_bytes = []
        for i in range(self.vocabulary.num_symbols):
            token = tokenizer.id_to_token(i)
            assert token is not None
            self.token_bytes.append(bytes(character_to_byte[c] for c in token))
        self.token_bytes += [b""] * (4 + num_sentinels)

    @classmethod
    def train(cls, config: TokenizerConfig, num_sentinels: int, texts: Iterator[str]) -> BPETokenizer:
        """Learns the merges from ``texts``, then adds the special tokens behind them."""
        tokenizer = HFTokenizer(models.BPE())
        normalizer = _normalizer(config)
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        stages = [_PRE_TOKENIZERS[name]() for name in config.pre_tokenization]
        if "byte_level" not in config.pre_tokenization:  # without its pattern, text still turns into bytes
            stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(stages)
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            min_frequency=2,
            initial_alphabet=sorted(byte_level_alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        if tokenizer.get_vocab_size() < config.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={config.vocab_size}: the training text yields only "
                f"{tokenizer.get_vocab_size()} symbols; set tokenizer.vocab_size to that or fewer"
            )
        _add_special_tokens(tokenizer, config, num_sentinels)
        return cls(tokenizer, num_sentinels)

    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        return [np.array(e.ids, dtype=np.uint32) for e in self._tokenizer.encode_batch_fast(list(texts))]

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def save(self, folder: Path) -> None:
        self._tokenizer.save(str(folder / "tokenizer.json"))


def load_tokenizer(config: TokenizerConfig, num_sentinels: int, folder: Path) -> TextTokenizer:
    """The tokenizer of a prepared token file."""
    if config.kind != "bpe":  # nothing was learned from the text
        return train_tokenizer(config, num_sentinels, iter(()))
    return BPETokenizer(HFTokenizer.from_file(str(folder / "tokenizer.json")), num_sentinels)


def train_tokenizer(config: TokenizerConfig, num_sentinels: int, train_texts: Iterator[str]) -> TextTokenizer:
    """A new tokenizer; ``train_texts`` is read only where there is something to learn."""
    if config.path is not None:
        from experiments.data.folder_tokenizer import FolderTokenizer  # which imports this module

        return FolderTokenizer(config, Path(config.path))
    if config.kind == "bytes":
        return ByteTokenizer(config, num_sentinels)
    return BPETokenizer.train(config, num_sentinels, train_texts)


def _normalizer(config: TokenizerConfig) -> normalizers.Normalizer | None:
    stages = [_NORMALIZERS[name]() for name in config.normalization]
    return normalizers.Sequence(stages) if stages else None


def _add_special_tokens(tokenizer: HFTokenizer, config: TokenizerConfig, num_sentinels: int) -> None:
    """Adds pad, bos, eos, mask and sentinels at the ids of ``Vocabulary``, and the post-processor.

    The brackets in their names are not in the byte-level alphabet, so no merge can be named alike.
    """
    v = Vocabulary(num_symbols=tokenizer.get_vocab_size(), num_sentinels=num_sentinels)
    ids = {"⟨pad⟩": v.pad, "⟨bos⟩": v.bos, "⟨eos⟩": v.eos, "⟨mask⟩": v.mask}
    for i in reversed(range(num_sentinels)):
        ids[f"⟨sentinel {i}⟩"] = v.sentinel(i)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ids])
    assert all(tokenizer.token_to_id(name) == i for name, i in ids.items())
    used = [f"⟨{name}⟩" for name in config.post_processing]
    before, after = [n for n in used if n == "⟨bos⟩"], [n for n in used if n == "⟨eos⟩"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=[(name, ids[name]) for name in used]
    )


def byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level BPE (Radford et al. 2019).

    Printable Latin-1 characters stand for themselves; the other bytes take
    characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
