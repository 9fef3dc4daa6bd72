"""Kinds of text, by spelling and layout alone: what any corpus of UTF-8 can tell without a tagger.

Shapes: B batch, T length, N bytes of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.data.code_lines import is_code

KINDS = (
    "start of a word", "rest of a word", "number", "punctuation", "code", "white space", "end of document",
)  # fmt: skip
"""In the order of their numbers. ``code`` is all but the white space of a line that looks like code;
``end of document`` stands for every token without text."""
START, REST, NUMBER, PUNCTUATION, CODE, SPACE, END = range(len(KINDS))


def _byte_kinds() -> NDArray[np.uint8]:
    """Return the kind of each byte by itself: letters are ``REST``; so are bytes beyond ASCII and ``_``."""
    kinds = np.full(256, PUNCTUATION, dtype=np.uint8)
    for byte in range(256):
        character = chr(byte)
        if byte >= 128 or character.isalpha() or character == "_":
            kinds[byte] = REST
        elif character.isdigit():
            kinds[byte] = NUMBER
        elif character.isspace():
            kinds[byte] = SPACE
    return kinds


_BYTE_KINDS = _byte_kinds()


def token_kinds(tokens_BT: NDArray[np.int64], token_bytes: Sequence[bytes]) -> NDArray[np.int64]:
    """Return the kind (B, T) of each token of windows, as its number in ``KINDS``.

    A token has the kind of its first byte that is no white space. A line that begins before the window is
    judged by the part in it.
    """
    kinds_BT = np.full(tokens_BT.shape, END, dtype=np.int64)
    for row, tokens_T in enumerate(tokens_BT.tolist()):
        pieces = [token_bytes[token] for token in tokens_T]
        text = b"".join(pieces)
        length_T = np.array([len(piece) for piece in pieces])
        lead_T = np.array([len(piece) - len(piece.lstrip()) for piece in pieces])
        place_T = np.cumsum(length_T) - length_T + np.minimum(lead_T, np.maximum(length_T - 1, 0))
        has_text_T = length_T > 0
        kinds_BT[row, has_text_T] = _text_kinds(text)[place_T[has_text_T]]
    return kinds_BT


def _text_kinds(text: bytes) -> NDArray[np.uint8]:
    """Return the kind of each byte of a text."""
    kinds_N = _BYTE_KINDS[np.frombuffer(text, dtype=np.uint8)]
    letter_N = kinds_N == REST
    opens_N = letter_N.copy()
    opens_N[1:] &= ~letter_N[:-1] & (kinds_N[:-1] != NUMBER)
    kinds_N[opens_N] = START
    lines = text.decode("latin-1").split("\n")  # a character for each byte
    in_code_N = np.repeat([is_code(line) for line in lines], [len(line) + 1 for line in lines])[:-1]
    kinds_N[in_code_N & (kinds_N != SPACE)] = CODE
    return kinds_N
