"""Ends of a generated text: special tokens, pieces of text, and the end tokens of the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer
from archbench.experiments.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The tokens and pieces of text that end a generated text."""

    tokens: frozenset[int]
    """End tokens, which are part of the generated tokens."""
    texts: tuple[str, ...]
    """Pieces of text; a text ends with the token that completes one."""


def read_stops(names: Sequence[str], tokenizer: TextTokenizer) -> Stop:
    """Return what ``stop`` names: ends of the tokenizer, special tokens, pieces of text."""
    tokens, texts = set[int](), list[str]()
    for name in names:
        if name == "eos":
            tokens |= {*tokenizer.vocabulary.stops}
            continue
        if isinstance(tokenizer, FolderTokenizer) and not tokenizer.is_run:
            ids = tokenizer.encode_prompt(name, framed=False)
            # As in the library of these folders, text is looked for in the text: " cat" has "cat" in it.
            is_token = len(ids) == 1 and ids[0] in tokenizer.vocabulary.special
        else:
            ids = tokenizer.encode(name)
            is_token = len(ids) == 1
        if is_token:
            tokens.add(ids[0])
        elif name:
            texts.append(name)
    return Stop(tokens=frozenset(tokens), texts=tuple(texts))


def stop_tokens(names: Sequence[str], tokenizer: TextTokenizer) -> set[int]:
    """The token ids of ``stop``. Raises ConfigError for a text that is not one token."""
    stop = read_stops(names, tokenizer)
    for text in stop.texts:
        count = len(tokenizer.encode(text))
        raise ConfigError(f"stop: {text!r} is {count} tokens; a text ends at eos, or at text of one token")
    return set(stop.tokens)
