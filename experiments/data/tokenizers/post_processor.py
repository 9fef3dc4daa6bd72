"""The special tokens that the tokenizer of a folder adds to a text or to a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

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
