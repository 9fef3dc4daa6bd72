"""The tokenizer of a folder: of a Hugging Face model, or of one of our runs.

Its ids are preserved, because weights were trained on them. The bytes of
each token are those of the text at its offsets, not those of its name: a token may
mark spaces that are not in the text, and represent text that it does not spell
(case, accents, unknown words, dropped white space). A SentencePiece model may read
the name of a special token in a text as that token.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.data.tokenizers.folder_vocabulary import (
    IDS,
    FolderVocabulary,
    find_roles,
    generation_ids,
    model_settings,
    special_names,
    table_rows,
)
from experiments.data.tokenizers.post_processor import Template
from experiments.data.tokenizers.tokenized_text import TokenizedText, tokenize_with_offsets
from experiments.data.tokenizers.tokenizer import TextTokenizer, TokenizerConfig
from experiments.data.tokenizers.tokenizer_file import read_tokenizer, spelling_rule, unknown_token

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
"""Further files of a model's folder: the tokenizer, and the settings of generation."""
_SENTINEL = re.compile(r"<extra_id_(\d+)>|⟨sentinel (\d+)⟩")
"""T5's sentinels, and ours."""


class FolderTokenizer(TextTokenizer):
    """``tokenizer.json`` of a folder, with the special tokens that other files of the folder name.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """

    def __init__(self, config: TokenizerConfig, folder: Path) -> None:
        self._tokenizer, self._folder, model = read_tokenizer(folder), folder, model_settings(folder)
        size = max(self._tokenizer.get_vocab_size(), table_rows(model) or 0)
        added = self._tokenizer.get_added_tokens_decoder()
        tokens = {token: i for i in range(size) if (token := self._tokenizer.id_to_token(i)) is not None}
        special = {i for i, token in added.items() if token.special}
        special |= set(range(size)) - set(tokens.values())
        sentinels = sorted((int(m[1] or m[2]), i) for t, i in tokens.items() if (m := _SENTINEL.fullmatch(t)))
        special |= {i for _, i in sentinels}
        roles = find_roles(folder, tokens)
        is_run = "⟨bos⟩" in tokens
        self._template = None if is_run else Template.read(self._tokenizer)
        frame = Template.ours(roles["bos"], roles["eos"]) if self._template is None else self._template
        start = generation_ids(folder, "decoder_start_token_id")
        self.vocabulary: FolderVocabulary = FolderVocabulary(
            num_symbols=size - len(special),
            num_sentinels=len(sentinels),
            table_size=size,
            special=tuple(sorted(special)),
            roles=tuple(roles.items()),
            sentinels=tuple(i for _, i in sentinels),
            own=is_run,
            before=frame.before,
            after=frame.after,
            ends=(roles["eos"],) if is_run else generation_ids(folder, "eos_token_id") or (roles["eos"],),
            first=start[0] if start else None,
        )
        self._special = frozenset(special)
        described = json.loads(self._tokenizer.to_str())
        self.unknown = unknown_token(described, tokens)
        spell = spelling_rule(described)
        self.token_bytes = [b""] * size
        for token, i in tokens.items():
            if i not in special:
                self.token_bytes[i] = token.encode() if i in added else spell(token)
        add_bos, add_eos = "bos" in config.post_processing, "eos" in config.post_processing
        self._before = [self.vocabulary.bos] if add_bos else []
        self._after = [self.vocabulary.eos] if add_eos else []

    def encode_documents(self, texts: Sequence[str]) -> list[TokenizedText]:
        return tokenize_with_offsets(self._tokenizer, texts, self.decode, self._before, self._after)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, text: str, *, framed: bool = True) -> list[int]:
        """Token ids of a prompt as the ``transformers`` library encodes it.

        Names of special tokens in the text become these tokens, and where it is ``framed`` the tokenizer
        adds further ones, such as Llama's begin token. A chat template has written them into its text.
        """
        if self._template is None:
            if not framed:
                return self.encode(text)
            if model_settings(self._folder).get("is_encoder_decoder"):
                return [*self.encode(text), *self.vocabulary.end]
            return [*self.vocabulary.begin, *self.encode(text)]
        self._tokenizer.encode_special_tokens = False
        try:
            return self._tokenizer.encode(text, add_special_tokens=framed).ids
        finally:
            self._tokenizer.encode_special_tokens = True

    def frame(self, parts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        return super().frame(parts) if self._template is None else self._template.frame(parts)

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode with the folder's decoder, which inserts spaces."""
        symbols = [int(t) for t in tokens if int(t) not in self._special]
        return self._tokenizer.decode(symbols, skip_special_tokens=False)

    @property
    def settings(self) -> dict[str, Any]:
        """The ids of special tokens of the folder's config.json, by their keys there."""
        return {k: v for k, v in model_settings(self._folder).items() if k.endswith("_token_id")}

    @property
    def prefix_token(self) -> int:
        """The token that represents the context before a text: the begin token, or else the end token."""
        bos_name = special_names(self._folder).get("bos_token")
        bos = None if bos_name is None else self._tokenizer.token_to_id(bos_name)
        return self.vocabulary.eos if bos is None else bos

    def token(self, i: int) -> str:
        """The name of a token."""
        return self._tokenizer.id_to_token(i) or ""

    @property
    def own(self) -> bool:
        """True for the tokenizer of a run of ours."""
        return self.vocabulary.own

    def copy_files(self, folder: Path) -> None:
        """Write the files of the tokenizer and of generation as they are."""
        for name in FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)

    def save(self, folder: Path) -> None:
        """Save everything needed to load it."""
        self.copy_files(folder)
        saved = {"vocab_size": self.vocabulary.size, **self.settings}
        (folder / IDS).write_text(json.dumps(saved, indent=1) + "\n")


def identity(folder: Path) -> str:
    """A hash of all that decides ids and bytes; the path does not."""
    read_tokenizer(folder)
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json", IDS)
    digest = hashlib.sha256()
    for name in names:
        digest.update((folder / name).read_bytes() if (folder / name).exists() else b"-")
    return digest.hexdigest()[:16]
