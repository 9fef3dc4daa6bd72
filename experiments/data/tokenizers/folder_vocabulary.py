"""The special tokens of a Hugging Face folder, and the vocabulary with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime import json_state
from archbench.experiments.runtime.errors import DataError

IDS = "token_ids.json"
"""File in the folder of a run with the ids of special tokens of the folder that its tokenizer is from."""
_ROLES = {"pad": ("pad", "eos"), "bos": ("bos", "cls", "eos"), "eos": ("eos", "sep"), "mask": ("mask",)}
"""The special tokens of a folder that serve as ours, best first: BERT's [CLS] and [SEP] begin and end."""


@dataclass(frozen=True, kw_only=True)
class FolderVocabulary(Vocabulary):
    """Special tokens wherever the folder has them. ``num_symbols`` is a count, not the end of a range."""

    table_size: int
    """Rows of the embedding table; at least the tokens there are."""
    special: tuple[int, ...]
    """Every id without text."""
    roles: tuple[tuple[str, int], ...]
    """The ids of pad, bos, eos and mask, as far as the folder has them."""
    sentinels: tuple[int, ...]
    """The ids of the sentinels, from number 0 on."""
    is_run: bool
    """True for the tokenizer of a run, which uses our names of special tokens."""
    before: tuple[int, ...]
    """The special tokens before a text."""
    after: tuple[int, ...]
    """The special tokens after a text."""
    ends: tuple[int, ...]
    """The tokens that end a generated text."""
    first: int | None
    """The token that a decoder starts from; None for padding."""

    def _role(self, name: str) -> int:
        index = dict(self.roles).get(name)
        if index is None:
            raise DataError(f"the tokenizer's folder names no {name} token, which this objective needs")
        return index

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
    def begin(self) -> tuple[int, ...]:
        return self.before

    @property
    def end(self) -> tuple[int, ...]:
        return self.after

    @property
    def pair_frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the folder's special tokens around a text: BART's also begin one."""
        return super().pair_frame if self.is_run or self.eos not in self.after else (self.before, self.after)

    @property
    def stops(self) -> tuple[int, ...]:
        return self.ends

    @property
    def decoder_start(self) -> int:
        return self.pad if self.first is None else self.first

    @property
    def size(self) -> int:
        return self.table_size

    def may_be_written(self) -> Tensor:
        """Every token, as in the ``transformers`` library; only symbols where the tokenizer is a run's."""
        return self.is_symbol() if self.is_run else torch.ones(self.size, dtype=torch.bool)

    def is_symbol(self) -> Tensor:
        symbol_V = torch.ones(self.size, dtype=torch.bool)
        symbol_V[list(self.special)] = False
        return symbol_V

    def sentinel(self, index: int) -> int:
        if not 0 <= index < self.num_sentinels:
            raise ValueError(f"sentinel {index} requested, {self.num_sentinels} exist")
        return self.sentinels[index]


def find_roles(folder: Path, tokens: dict[str, int]) -> dict[str, int]:
    """Return ids of pad, bos, eos and mask, from the other files of the folder or by our names of them.

    Raises:
        DataError: no file names a token that ends a text.
    """
    model = model_settings(folder)
    names = special_names(folder)

    def find(name: str) -> int | None:
        key = f"{name}_token_id"
        listed = [i for i in token_ids(folder / "config.json", key, model.get(key)) if i >= 0]
        return tokens.get(names.get(f"{name}_token") or f"⟨{name}⟩", listed[0] if listed else None)

    ids = {
        role: next((i for name in order if (i := find(name)) is not None), None)
        for role, order in _ROLES.items()
    }
    if ids["eos"] is None:
        raise DataError(f"{folder}: its files name no eos_token, so texts would have no end")
    return {role: i for role, i in ids.items() if i is not None}


def special_names(folder: Path) -> dict[str, str]:
    """Return the special tokens that a folder names, such as ``bos_token``, by these names."""
    files = ("special_tokens_map.json", "tokenizer_config.json")
    settings = {key: value for name in files for key, value in read_json(folder / name).items()}
    texts = {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in settings.items()
        if key.endswith("_token")
    }
    return {key: value for key, value in texts.items() if isinstance(value, str)}


def generation_ids(folder: Path, key: str) -> tuple[int, ...]:
    """Return the ids under a key of generation_config.json, or of config.json where there is no such file.

    Negative ids, which mean none in older files, and ids outside the vocabulary are left out.

    Raises:
        DataError: they are not integers.
    """
    file = folder / "generation_config.json"
    model = model_settings(folder)
    size = table_rows(model)
    listed = token_ids(file, key, (read_json(file) if file.is_file() else model).get(key))
    return tuple(i for i in listed if i >= 0 and (not isinstance(size, int) or i < size))


def token_ids(file: Path, key: str, value: Any) -> list[int]:
    """Return one or more ids as a list. Raises DataError."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(i) is int for i in listed):
        raise DataError(f"{file}: {key}={value!r} must be the id of a token, or a list of them")
    return listed


def table_rows(model: dict[str, Any]) -> Any:
    """Return the rows of the table of tokens by config.json; LLaDA pads its table, and has a key for that."""
    padded = model.get("embedding_size") if model.get("model_type") == "llada" else None
    return padded or model.get("vocab_size")


def model_settings(folder: Path) -> dict[str, Any]:
    """Return config.json of a folder, or what a run that is trained with its tokenizer keeps of it."""
    file = folder / "config.json"
    return read_json(file if file.is_file() else folder / IDS)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a file, empty if it is missing. Raises DataError."""
    return json_state.read_json(path, dict[str, Any], "fetch the folder again", DataError) or {}
