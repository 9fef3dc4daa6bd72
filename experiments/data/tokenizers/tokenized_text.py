"""Texts as tokens, and the bytes of the text of each token.

Shapes: N tokens of a text, C characters, R runs of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as HFTokenizer

from experiments.runtime.errors import DataError


@dataclass(frozen=True, kw_only=True)
class TokenizedText:
    """The tokens of a text."""

    tokens_N: NDArray[np.integer]
    """Token ids, bos and eos included where the tokenizer adds them."""
    bytes_N: NDArray[np.integer]
    """Bytes of the text, in UTF-8, of each token. They sum to the bytes of the text, unless it
    has no token."""
    lossless: bool
    """True if decoding the tokens gives the text back."""


def tokenize_with_offsets(
    tokenizer: HFTokenizer,
    texts: Sequence[str],
    decode: Callable[[Iterable[int]], str],
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
) -> list[TokenizedText]:
    """Tokenize texts, and count the bytes of each token by its offsets in the text.

    Args:
        tokenizer: of the ``tokenizers`` package.
        texts: any text.
        decode: from tokens back to text.
        prefix: special tokens that precede each text.
        suffix: special tokens that follow each text.

    Raises:
        DataError: the package fails on a text.
    """
    try:
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    except BaseException as error:  # a panic of its Rust code is no Exception
        if type(error).__name__ not in ("PanicException", "Exception"):
            raise
        raise DataError(f"the tokenizer fails on a text ({error}): mend its tokenizer.json") from None
    tokenized = []
    for text, encoding in zip(texts, encodings, strict=True):
        bytes_N = np.zeros(len(prefix) + len(encoding) + len(suffix), dtype=np.int64)
        if len(encoding):
            bytes_N[len(prefix) :][: len(encoding)] = bytes_of_tokens(text, encoding.offsets)
        else:
            bytes_N[:1] = len(text.encode())
        tokens_N = np.array([*prefix, *encoding.ids, *suffix], dtype=np.uint32)
        lossless = decode(encoding.ids) == text
        tokenized.append(TokenizedText(tokens_N=tokens_N, bytes_N=bytes_N, lossless=lossless))
    return tokenized


def bytes_of_tokens(text: str, spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the bytes of a text for each of its tokens (N,); they sum to the bytes of the text.

    Characters that no span covers, such as white space that a pre-tokenizer drops, belong to the token that
    follows, or to the last one. Tokens with equal spans, such as the bytes of a character, share its
    bytes evenly.

    Args:
        text: any text.
        spans: first character and end of each token, at least one.
    """
    span_N2 = np.array(spans, dtype=np.int64)
    code_C = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    bytes_C = 1 + (code_C >= 0x80) + (code_C >= 0x800) + (code_C >= 0x10000)
    byte_at = np.concatenate([[0], np.cumsum(bytes_C)])  # of each character, and of the end
    end_N = np.maximum.accumulate(byte_at[span_N2[:, 1]])
    end_N[-1] = byte_at[-1]

    opens_N = np.ones(len(spans), dtype=bool)
    opens_N[1:] = (span_N2[1:] != span_N2[:-1]).any(1)
    first_R = np.flatnonzero(opens_N)
    size_R = np.diff(first_R, append=len(spans))
    end_R = end_N[first_R + size_R - 1]
    begin_R = np.concatenate([[0], end_R[:-1]])
    run_N = opens_N.cumsum() - 1
    number_N = np.arange(len(spans)) - first_R[run_N] + 1
    shared_end_N = begin_R[run_N] + (end_R - begin_R)[run_N] * number_N // size_R[run_N]
    return np.diff(shared_end_N, prepend=0)
