"""``tokenizer.json`` of a folder: how it is opened, and how its tokens are spelled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as HFTokenizer

from experiments.data.tokenizers.byte_alphabet import byte_level_alphabet
from experiments.data.tokenizers.folder_vocabulary import read_json, special_names
from experiments.runtime.errors import DataError


def read_tokenizer(folder: Path) -> HFTokenizer:
    """Return the tokenizer of a folder, with the tokens that other files of the folder name.

    Raises DataError.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; name a folder that has a tokenizer.json")
    try:
        tokenizer = HFTokenizer.from_file(str(path))
    except Exception as error:  # the package raises no subclass
        raise DataError(f"{path}: unreadable ({error})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    _add_named_tokens(tokenizer, folder)
    tokenizer.encode_special_tokens = True  # "</s>" in a text is text
    return tokenizer


def _add_named_tokens(tokenizer: HFTokenizer, folder: Path) -> None:
    """Add tokens that are only in files other than tokenizer.json, as the ``transformers`` library does."""
    settings, vocabulary = (
        read_json(folder / "tokenizer_config.json"),
        tokenizer.get_vocab(with_added_tokens=True),
    )
    listed = settings.get("added_tokens_decoder") or {}
    ordered = [listed[i] for i in sorted(listed, key=int)] if isinstance(listed, dict) else []
    options = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for token in ordered:
        if token["content"] not in vocabulary:
            flags = {name: token[name] for name in options if name in token}
            tokenizer.add_tokens([AddedToken(token["content"], **flags)])
    names = [*special_names(folder).values(), *(settings.get("additional_special_tokens") or [])]
    missing = [name for name in names if isinstance(name, str) and name not in vocabulary]
    special = [AddedToken(name, special=True, normalized=False) for name in missing if name]
    if special:
        tokenizer.add_special_tokens(special)


def spelling_rule(tokenizer: dict[str, Any]) -> Callable[[str], bytes]:
    """Return a function from a token's name to the bytes that it spells, by the type of tokenizer.

    They identify and print a token. Its bytes in a text depend on the text (``TokenizedText``).
    """
    parts = json.dumps([tokenizer["pre_tokenizer"], tokenizer["decoder"]], ensure_ascii=False)
    if '"ByteLevel"' in parts:
        alphabet = byte_level_alphabet()
        return lambda token: b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in token)
    if "▁" in parts:
        return lambda token: (
            bytes([int(token[3:5], 16)]) if _is_byte(token) else token.replace("▁", " ").encode()
        )
    if '"WordPiece"' in parts:
        prefix = tokenizer["model"].get("continuing_subword_prefix") or "##"
        return lambda token: (token[len(prefix) :] if token.startswith(prefix) else f" {token}").encode()
    return str.encode


def unknown_token(tokenizer: dict[str, Any], tokens: dict[str, int]) -> int | None:
    """Return the id of the unknown token, which has a different key in each type of model."""
    model = tokenizer["model"]
    index = model.get("unk_id")
    return index if isinstance(index, int) else tokens.get(model.get("unk_token"))


def _is_byte(token: str) -> bool:
    """SentencePiece writes a byte it has no token for as <0xE2>."""
    return re.fullmatch(r"<0x[0-9A-F]{2}>", token) is not None
