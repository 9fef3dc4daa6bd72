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


class TokenKinds:
    """The kinds of the tokens of a vocabulary, in windows of text."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """``token_bytes`` are the bytes of text behind each token id."""
        self.bytes_N = np.frombuffer(b"".join(token_bytes), dtype=np.uint8)
        self.length_V = np.array([len(text) for text in token_bytes])
        self.begin_V = np.cumsum(self.length_V) - self.length_V
        lead_V = np.array([len(text) - len(text.lstrip()) for text in token_bytes])
        self.first_V = np.minimum(lead_V, np.maximum(self.length_V - 1, 0))
        """Place of the first byte of a token that is no white space."""

    def __call__(self, tokens_BT: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the kind (B, T) of each token, as its number in ``KINDS``.

        A token has the kind of its first byte that is no white space. A line that begins before the window is
        judged by the part in it.
        """
        length_BT = self.length_V[tokens_BT]
        ends_BT = length_BT.cumsum(1)
        kinds_BT = np.full(tokens_BT.shape, END, dtype=np.int64)
        for row, (tokens_T, length_T, end_T) in enumerate(zip(tokens_BT, length_BT, ends_BT, strict=True)):
            begin_T = end_T - length_T
            from_N = np.repeat(self.begin_V[tokens_T] - begin_T, length_T) + np.arange(end_T[-1])
            byte_kinds_N = _text_kinds(self.bytes_N[from_N])
            some_T = length_T > 0
            kinds_BT[row, some_T] = byte_kinds_N[(begin_T + self.first_V[tokens_T])[some_T]]
        return kinds_BT


def _text_kinds(text_N: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the kind of each byte of a text."""
    kinds_N = _BYTE_KINDS[text_N]
    letter_N = kinds_N == REST
    opens_N = letter_N.copy()
    opens_N[1:] &= ~letter_N[:-1] & (kinds_N[:-1] != NUMBER)
    kinds_N[opens_N] = START
    lines = text_N.tobytes().decode("latin-1").split("\n")  # a character for each byte
    begin = 0
    for line in lines:
        if is_code(line):
            own_N = kinds_N[begin : begin + len(line)]
            own_N[own_N != SPACE] = CODE
        begin += len(line) + 1
    return kinds_N
