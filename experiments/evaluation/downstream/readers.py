"""From the texts of the lm-evaluation-harness to tokens: by our rules, or by the harness's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
from experiments.run.load_model import LoadedModel

NONE = -1
"""Stands in a window for what comes before a text; the objective knows itself what a text begins with."""

Pair = tuple[list[int], list[int]]


def split_spaces(context: str, continuation: str) -> tuple[str, str]:
    """Move the spaces at the end of a context to its continuation, as the harness does."""
    spaces = len(context) - len(context.rstrip())
    return (context[:-spaces], context[-spaces:] + continuation) if spaces else (context, continuation)


class OwnReader:
    """Reads texts for models of ours, whose objective begins them."""

    def __init__(self, saved: LoadedModel) -> None:
        self._encode, self._apart = saved.tokenizer.encode, saved.model.capabilities.encoder_decoder

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt."""
        return self._encode(text)

    def pair(self, context: str, continuation: str) -> Pair:
        """Return the tokens of both.

        The two become tokens together, but for encoder-decoders, which read and write apart. Where a token
        runs over the border, the harness would repeat or lose text; here the token belongs to the
        continuation.
        """
        if context.strip():
            context, continuation = split_spaces(context, continuation)
        before = self._encode(context)
        if self._apart:
            return before, self._encode(continuation)
        whole = self._encode(context + continuation)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False))
        shared = len(list(same))
        return whole[:shared], whole[shared:]

    def windows(self, text: str, longest: int) -> Iterator[Pair]:
        """Yield windows of a text; one behind the first is given the last token before it."""
        windows = get_rolling_token_windows(
            self._encode(text), prefix_token=NONE, max_seq_len=longest, context_len=min(2, longest)
        )
        yield from map(make_disjoint_window, windows)


class HarnessReader:
    """Reads texts for Hugging Face folders by the rules of the harness's own ``hf`` model.

    The tokenizer adds its special tokens, unless a text begins with the begin token already.
    """

    def __init__(self, saved: LoadedModel) -> None:
        assert isinstance(saved.tokenizer, FolderTokenizer)
        self._tokenizer, self._apart = saved.tokenizer, saved.model.capabilities.encoder_decoder
        self._prefix = saved.tokenizer.prefix_token
        self._prefix_text = saved.tokenizer.token(self._prefix)

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt."""
        return self._tokenizer.encode_prompt(text, framed=not text.startswith(self._prefix_text))

    def pair(self, context: str, continuation: str) -> Pair:
        """Return the tokens of both: those of the whole text behind as many as the context has alone."""
        if not context:
            after = self._tokenizer.encode_prompt(continuation, framed=False)
            return (after[:1], after[1:]) if after[:1] == [self._prefix] else ([self._prefix], after)
        context, continuation = split_spaces(context, continuation)
        before = self.prompt(context)
        if self._apart:
            return before, self._tokenizer.encode_prompt(continuation, framed=False)
        return before, self.prompt(context + continuation)[len(before) :]

    def windows(self, text: str, longest: int) -> Iterator[Pair]:
        """Yield windows of a text, the first behind the begin token, or else the end token."""
        windows = get_rolling_token_windows(
            self.prompt(text), prefix_token=self._prefix, max_seq_len=longest - 1, context_len=1
        )
        yield from map(make_disjoint_window, windows)
