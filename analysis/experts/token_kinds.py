"""Word classes in English text that contains code, by word lists and spelling. Transparent, and approximate.

A character has the class of its word:

    whitespace   spaces and line breaks, also in code
    code         everything else in a line that looks like code, and words with ``_``, ``()`` or inner dots
    punctuation  characters that are neither letters, digits nor spaces
    number       words that begin with a digit
    connective   articles and conjunctions, by list
    function     other words of closed classes: prepositions, pronouns, auxiliaries, determiners, particles
    verb         common verbs by list, with their regular endings; other words in -ing, -ize, -ise, -ify ...
    name         capitalised words that do not open a sentence or a line
    other        the rest: nouns, adjectives, adverbs, and verbs the list lacks

Limitations: a word has one class regardless of its role in the sentence ("the call" counts as a verb);
capitalised nouns of headings count as names, names at the beginning of a sentence do not; a line of code
without the marks below counts as prose; a word or line that is cut off is classified by its visible part. The
classes were not compared with those of a trained tagger.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.evaluation.text_kinds import is_code

KINDS = (
    "whitespace", "punctuation", "connective", "function", "verb", "number", "name", "code", "other",
    "special",
)  # fmt: skip
"""Classes in the order of their indices. ``special`` is for tokens without text."""
SPECIAL = KINDS.index("special")

CONNECTIVES = frozenset(
    """
    a although an and because but if nor or so the though unless until whereas whether while yet
    """.split()  # noqa: SIM905 -- a list would take a line for each word
)
FUNCTION = frozenset(
    """
    about above across after again against all along also always am among any are aren't around as at be
    been before behind being below beneath beside between beyond both by can can't cannot could despite
    did do does doesn't doing don't done down during each either even ever every except few for from had
    has have having he her here him his how i in inside into is isn't it it's its just let's like many
    may me might mine more most much must my n't near neither never no none not of off often on once one
    only onto other others our out outside over own per same several shall she should since some such
    than that their them then there these they this those through throughout to too toward towards under
    up upon us very via was we were what when where which who whom whose why will with within without
    won't would you your yours
    """.split()  # noqa: SIM905 -- a list would take a line for each word
)
VERBS = frozenset(
    """
    accept access add allow append apply assign become began begin bind bound break broken build call
    came catch caught change check chosen close compare compile compute contain convert copy create
    define delete denote depend describe determine display encode ensure enter evaluate execute exist
    expect extend fail find follow format found gave generate get give given go got handle happen held
    hold ignore implement import include indicate inherit insert invoke iterate keep kept know known
    left load look lookup made make match mean meant modify move need occur open override parse pass
    perform print produce provide put raise ran read receive refer register remove replace represent
    require resolve return run said saw say see seem send sent set show shown specify split start stop
    store support take taken tell throw thrown took treat try turn update use wait want went work wrap
    write written wrote yield
    """.split()  # noqa: SIM905 -- a list would take a line for each word
)
_ENDING = re.compile(r"[a-z]{2,}(?:ing|(?:i[sz]|if[iy])(?:e|es|ed|y|ies))")
_WORD = re.compile(r"[^\W\d_][\w']*|\d[\w.]*\w|\d|\w+")
_CODE_WORD = re.compile(r"\w*_\w*(?:\.\w+)*(?:\(\))?|\w{2,}(?:\.\w+)+(?:\(\))?|\w+\(\)")
_OPENS = re.compile(r"(?:^|[.!?:][\"')\]]*)\s*[\"'(\[*`]*$")
"""Text before the first word of a sentence, on its line."""


def character_kinds(text: str) -> NDArray[np.uint8]:
    """Return the class of each character, as an index into ``KINDS``."""
    kinds = np.full(len(text), KINDS.index("punctuation"), dtype=np.uint8)
    begin = 0
    for line in text.splitlines(keepends=True):
        kinds[begin : begin + len(line)] = _line_kinds(line)
        begin += len(line)
    return kinds


def _line_kinds(line: str) -> NDArray[np.uint8]:
    kinds = np.full(len(line), KINDS.index("punctuation"), dtype=np.uint8)
    if is_code(line):
        kinds[:] = KINDS.index("code")
    else:
        for match in _WORD.finditer(line):
            kind = word_kind(match[0], opens=_OPENS.search(line[: match.start()]) is not None)
            kinds[match.start() : match.end()] = KINDS.index(kind)
        for match in _CODE_WORD.finditer(line):
            if not match[0][0].isdigit():
                kinds[match.start() : match.end()] = KINDS.index("code")
    kinds[[c.isspace() for c in line]] = KINDS.index("whitespace")
    return kinds


def word_kind(word: str, *, opens: bool) -> str:
    """Return the class of a word of prose; ``opens`` is True for the first word of a sentence or a line."""
    lower = word.lower()
    if word[0].isdigit():
        return "number"
    if lower in CONNECTIVES:
        return "connective"
    if lower in FUNCTION:
        return "function"
    if word[0].isupper() and not opens and len(word) > 1:
        return "name"
    return "verb" if _is_verb(lower) else "other"


def _is_verb(word: str) -> bool:
    stems = {word}
    for ending in ("s", "es", "d", "ed", "ing"):
        stem = word.removesuffix(ending)
        if stem != word:
            # raise-s, pass-es, us-ing, stop-p-ed
            stems |= {stem, stem + "e", stem[:-1] if stem[-2:-1] == stem[-1:] else stem}
    if word.endswith("ies") or word.endswith("ied"):
        stems.add(word[:-3] + "y")
    return bool(stems & VERBS) or _ENDING.fullmatch(word) is not None


def token_kinds(pieces: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the class of each token of a text, and whether its line looks like code.

    A token has the class of its first non-whitespace character; an empty token is ``special``.

    Args:
        pieces: the bytes of each token, in order.
    """
    data = b"".join(pieces)
    text = data.decode("utf-8", "surrogateescape")
    lengths = [len(c.encode("utf-8", "surrogateescape")) for c in text]
    byte_kind = np.repeat(character_kinds(text), lengths)
    lines = text.splitlines(keepends=True)
    in_code = np.repeat(
        np.array([is_code(line) for line in lines], dtype=bool),
        [len(line.encode("utf-8", "surrogateescape")) for line in lines],
    )
    kinds = np.full(len(pieces), SPECIAL, dtype=np.uint8)
    code = np.zeros(len(pieces), dtype=bool)
    begin = 0
    for i, piece in enumerate(pieces):
        if piece:
            first_byte = begin + min(len(piece) - len(piece.lstrip()), len(piece) - 1)
            kinds[i], code[i] = byte_kind[first_byte], in_code[first_byte]
        begin += len(piece)
    return kinds, code
