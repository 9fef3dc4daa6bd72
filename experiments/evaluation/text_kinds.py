"""Types of text, only by spelling and layout, so that any UTF-8 corpus needs no tagger.

Shapes: T tokens, N bytes of a text.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

_CODE_LINE = re.compile(
    r"""\s*(?:>>>|\.\.\.(?:\s|$)|@\w|\#\s|[\w"|]+\s*::?=)      # prompts, decorators, comments, grammar rules
    |\s+(?:def|class|import|from|return|raise|assert|del|pass|break|continue|yield|with|while|if|elif|else|for
        |try|except|finally|lambda|print)\b.*[:()=]            # an indented statement
    |(?:def|class|async\ def)\s+\w+.*:\s*$
    |.*(?:\w\s=\s\S|==|!=|->|\+=|\):\s*$|\w\[\w)               # operators that prose lacks
    |\s+[\w.]+\([^)]*\)\s*$                                    # a line that is only a call""",
    flags=re.VERBOSE,
)


def is_code(line: str) -> bool:
    """Return True for a line that looks like code: Python, and what resembles it.

    Transparent, and rough: a line of code without any of the marks above counts as prose.
    """
    return _CODE_LINE.match(line) is not None


KINDS = (
    "start of a word", "rest of a word", "number", "punctuation", "code", "white space", "end of document",
)  # fmt: skip
"""In the order of their indices. ``code`` is all but the white space of a line that looks like code;
``end of document`` is every token without text."""
START, REST, NUMBER, PUNCTUATION, CODE, SPACE, END = range(len(KINDS))


def _byte_kinds() -> NDArray[np.uint8]:
    """Return the type of each byte by itself: letters are ``REST``; so are bytes outside ASCII and ``_``."""
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


def token_kinds(text: bytes, bytes_T: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the type (T,) of each token of a text, as its index in ``KINDS``.

    A token has the type of its first byte that is not white space. A line that begins before the text is
    judged by the part in it.

    Args:
        text: in UTF-8.
        bytes_T: bytes of it of each token; their sum is its length.
    """
    byte_kinds_N = _text_kinds(np.frombuffer(text, dtype=np.uint8))
    end_T = bytes_T.cumsum()
    is_space_N = byte_kinds_N == SPACE
    place_N = np.where(is_space_N, len(text), np.arange(len(text)))
    next_N = np.minimum.accumulate(place_N[::-1])[::-1]  # the first byte from each on that is no white space
    some_T = bytes_T > 0
    kinds_T = np.full(len(bytes_T), END, dtype=np.int64)
    first_T = np.minimum(next_N[(end_T - bytes_T)[some_T]], end_T[some_T] - 1)
    kinds_T[some_T] = byte_kinds_N[first_T]
    return kinds_T


def _text_kinds(text_N: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the type of each byte of a text."""
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
