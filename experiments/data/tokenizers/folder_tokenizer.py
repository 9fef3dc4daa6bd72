"""The tokenizer of a folder (``tokenizer.json``): of a Hugging Face model, or of one of our runs.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as HFTokenizer

from archbench.experiments.data.tokenizers.folder_vocabulary import (
    IDS,
    FolderVocabulary,
    find_roles,
    generation_ids,
    model_settings,
    read_json,
    special_names,
    table_rows,
)
from archbench.experiments.data.tokenizers.tokenizer import (
    TextTokenizer,
    TokenizedText,
    TokenizerConfig,
    byte_level_alphabet,
    tokenize_with_offsets,
)
from archbench.experiments.runtime.errors import DataError

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
            is_run=is_run,
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
    def is_run(self) -> bool:
        """True for the tokenizer of a run of ours."""
        return self.vocabulary.is_run

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


_SAMPLES = ("a", "the", "0", "A")
"""Texts, of which a tokenizer knows one at least."""

Part = tuple[int, int | None]
"""A token and its segment; or the number of a text in place of the token, and None."""


@dataclass(frozen=True)
class Template:
    """Places of the special tokens around one text and around two."""

    single: tuple[Part, ...]
    pair: tuple[Part, ...]

    @classmethod
    def read(cls, tokenizer: HFTokenizer) -> Template:
        """Return the template of a tokenizer, found by encoding a sample."""
        sample = next((s for s in _SAMPLES if tokenizer.encode(s, add_special_tokens=False).ids), "")
        return cls(single=_parts(tokenizer.encode(sample)), pair=_parts(tokenizer.encode(sample, sample)))

    @classmethod
    def ours(cls, bos: int, eos: int) -> Template:
        """Return the template of the tokenizers of runs."""
        single: tuple[Part, ...] = ((bos, 0), (0, None), (eos, 0))
        return cls(single=single, pair=(*single, (1, None), (eos, 1)))

    @property
    def before(self) -> tuple[int, ...]:
        """The special tokens before a text."""
        return tuple(token for token, segment in self.single[: self._text] if segment is not None)

    @property
    def after(self) -> tuple[int, ...]:
        """The special tokens after a text."""
        return tuple(token for token, segment in self.single[self._text :] if segment is not None)

    @property
    def _text(self) -> int:
        return next((i for i, (_, segment) in enumerate(self.single) if segment is None), len(self.single))

    def frame(self, parts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Return one or two encoded texts between special tokens, and the segment of each token.

        The second text is in segment 1, regardless of the tokenizer: some models have no segments.
        """
        tokens, segments, latest = list[int](), list[int](), 0
        for token, segment in self.single if len(parts) == 1 else self.pair:
            if segment is None:
                latest = token
                tokens += parts[token]
                segments += [token] * len(parts[token])
            else:
                tokens.append(token)
                segments.append(max(segment, latest))
        return tokens, segments


def _parts(encoding: Encoding) -> tuple[Part, ...]:
    parts: list[Part] = []
    for token, text, segment in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True):
        if text is None:
            parts.append((token, segment))
        elif (text, None) not in parts:
            parts.append((text, None))
    return tuple(parts)


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
        # SentencePiece writes a byte that it has no token for as <0xE2>.
        return lambda token: (
            bytes([int(m[1], 16)])
            if (m := re.fullmatch(r"<0x([0-9A-F]{2})>", token))
            else token.replace("▁", " ").encode()
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
