"""The tokenizer of a folder: of a Hugging Face model, or of a run of ours.

Its ids stay as they are, because weights were trained on them. Bytes behind each
token are exact for byte-level BPE. Where the tokenizer marks the beginning of a
word (SentencePiece, WordPiece), each document counts one space that is not in it;
where it changes text (case, accents, unknown words), bytes are those of the
changed text. A SentencePiece model may read the name of a special token in a text
as that token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as HFTokenizer
from torch import Tensor

from experiments.data.bpe_tokenizer import byte_level_alphabet
from experiments.data.tokenizer import TextTokenizer, TokenizerConfig
from experiments.data.vocabulary import Vocabulary
from experiments.runtime.errors import DataError

_SENTINEL = re.compile(r"<extra_id_(\d+)>|⟨sentinel (\d+)⟩")
"""T5's sentinels, and ours."""
_ROLES = {"pad": ("pad", "eos"), "bos": ("bos", "cls", "eos"), "eos": ("eos", "sep"), "mask": ("mask",)}
"""The special tokens of a folder that serve as ours, best first: BERT's [CLS] and [SEP] begin and end."""


@dataclass(frozen=True, kw_only=True)
class FolderVocabulary(Vocabulary):
    """Special tokens wherever the folder has them. ``num_symbols`` is a count, not the end of a range."""

    table_size: int
    """Rows of the embedding table; at least the tokens there are."""
    special: tuple[int, ...]
    """Every id that stands for no text."""
    roles: tuple[tuple[str, int], ...]
    """The ids of pad, bos, eos and mask, as far as the folder has them."""
    sentinels: tuple[int, ...]
    """The ids of the sentinels, from number 0 on."""

    def _role(self, name: str) -> int:
        found = dict(self.roles).get(name)
        if found is None:
            raise DataError(f"the tokenizer's folder names no {name} token, which this objective needs")
        return found

    @property
    def pad(self) -> int:
        return self._role("pad")

    @property
    def bos(self) -> int:
        return self._role("bos")

    @property
    def eos(self) -> int:
        return self._role("eos")

    @property
    def mask(self) -> int:
        return self._role("mask")

    @property
    def size(self) -> int:
        return self.table_size

    def is_symbol(self) -> Tensor:
        symbol_V = torch.ones(self.size, dtype=torch.bool)
        symbol_V[list(self.special)] = False
        return symbol_V

    def sentinel(self, index: int) -> int:
        if not 0 <= index < self.num_sentinels:
            raise ValueError(f"sentinel {index} asked for, {self.num_sentinels} exist")
        return self.sentinels[index]


class FolderTokenizer(TextTokenizer):
    """``tokenizer.json`` of a folder, with the special tokens that the files beside it name.

    Raises:
        DataError: there is no such file, it cannot be read, or its tokens cannot be traced to bytes.
    """

    def __init__(self, config: TokenizerConfig, folder: Path) -> None:
        self._tokenizer = _read(folder)
        size = max(self._tokenizer.get_vocab_size(), _json(folder / "config.json").get("vocab_size", 0))
        added = self._tokenizer.get_added_tokens_decoder()
        tokens = {token: i for i in range(size) if (token := self._tokenizer.id_to_token(i)) is not None}
        special = {i for i, token in added.items() if token.special}
        special |= set(range(size)) - set(tokens.values())
        sentinels = sorted((int(m[1] or m[2]), i) for t, i in tokens.items() if (m := _SENTINEL.fullmatch(t)))
        special |= {i for _, i in sentinels}
        self.vocabulary: FolderVocabulary = FolderVocabulary(
            num_symbols=size - len(special),
            num_sentinels=len(sentinels),
            table_size=size,
            special=tuple(sorted(special)),
            roles=tuple(_roles(folder, tokens).items()),
            sentinels=tuple(i for _, i in sentinels),
        )
        to_bytes = _byte_rule(json.loads(self._tokenizer.to_str()), folder)
        self.token_bytes = [b""] * size
        for token, i in tokens.items():
            if i not in special:
                self.token_bytes[i] = token.encode() if i in added else to_bytes(token)
        before, after = "bos" in config.post_processing, "eos" in config.post_processing
        self._before = [self.vocabulary.bos] if before else []
        self._after = [self.vocabulary.eos] if after else []

    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([*self._before, *e.ids, *self._after], dtype=np.uint32) for e in encoded]

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Iterable[int]) -> str:
        """By the folder's own decoder, which knows where spaces go."""
        symbols = [int(t) for t in tokens if int(t) not in self.vocabulary.special]
        return self._tokenizer.decode(symbols, skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Everything that reading it again needs."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        names = {f"{role}_token": self._tokenizer.id_to_token(i) for role, i in self.vocabulary.roles}
        (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=1) + "\n")


def identity(folder: Path) -> str:
    """A hash of all that decides ids and bytes; the path does not."""
    _read(folder)
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")
    digest = hashlib.sha256()
    for name in names:
        digest.update((folder / name).read_bytes() if (folder / name).exists() else b"-")
    return digest.hexdigest()[:16]


def _read(folder: Path) -> HFTokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; name a folder that has a tokenizer.json")
    try:
        tokenizer = HFTokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more specific
        raise DataError(f"{path}: unreadable ({error})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # "</s>" in a text is text
    return tokenizer


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise DataError(f"{path}: unreadable ({error})") from None


def _roles(folder: Path, tokens: dict[str, int]) -> dict[str, int]:
    """Ids of pad, bos, eos and mask, from the files beside the tokenizer or from our own names for them."""
    model = _json(folder / "config.json")
    names = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}

    def find(name: str) -> int | None:
        token = names.get(f"{name}_token")
        token = token["content"] if isinstance(token, dict) else token
        listed = model.get(f"{name}_token_id")
        given = listed[0] if isinstance(listed, list) else listed
        return tokens.get(token or f"⟨{name}⟩", given)

    found = {
        role: next((i for name in order if (i := find(name)) is not None), None)
        for role, order in _ROLES.items()
    }
    if found["eos"] is None:
        raise DataError(f"{folder}: its files name no eos_token, so texts would have no end")
    return {role: i for role, i in found.items() if i is not None}


def _byte_rule(tokenizer: dict[str, Any], folder: Path) -> Callable[[str], bytes]:
    """A function from a token's name to the UTF-8 bytes it stands for, by the kind of tokenizer."""
    parts = json.dumps([tokenizer["pre_tokenizer"], tokenizer["decoder"]], ensure_ascii=False)
    if '"ByteLevel"' in parts:
        alphabet = byte_level_alphabet()
        return lambda token: bytes(alphabet[c] for c in token)
    if "▁" in parts:
        return lambda token: (
            bytes([int(token[3:5], 16)]) if _is_byte(token) else token.replace("▁", " ").encode()
        )
    if '"WordPiece"' in parts:
        prefix = tokenizer["decoder"]["prefix"]
        return lambda token: (token[len(prefix) :] if token.startswith(prefix) else f" {token}").encode()
    raise DataError(
        f"{folder / 'tokenizer.json'}: neither byte-level BPE, SentencePiece nor WordPiece, so the bytes "
        "behind its tokens are unknown"
    )


def _is_byte(token: str) -> bool:
    """SentencePiece writes a byte it has no token for as <0xE2>."""
    return re.fullmatch(r"<0x[0-9A-F]{2}>", token) is not None
