"""From the texts of the lm-evaluation-harness to tokens: by the rules of archbench or of the harness."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
from archbench.experiments.run.load_model import LoadedModel

NONE = -1
"""Placeholder for the context before a text; the objective adds the begin token."""

Pair = tuple[list[int], list[int]]


def split_spaces(context: str, continuation: str) -> tuple[str, str]:
    """Move the spaces at the end of a context to its continuation, as the harness does."""
    spaces = len(context) - len(context.rstrip())
    return (context[:-spaces], context[-spaces:] + continuation) if spaces else (context, continuation)


class RunReader:
    """Tokenizes texts for models of archbench, with an objective that adds the begin token."""

    def __init__(self, saved: LoadedModel) -> None:
        self._encode, self._apart = saved.tokenizer.encode, saved.model.capabilities.encoder_decoder

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt."""
        return self._encode(text)

    def pair(self, context: str, continuation: str) -> Pair:
        """Return the tokens of both.

        Both are tokenized together, except for encoder-decoders. Where a token spans the
        boundary, the harness would repeat or lose text; here the token belongs to the
        continuation.
        """
        if context.strip():
            context, continuation = split_spaces(context, continuation)
        prefix = self._encode(context)
        if self._apart:
            return prefix, self._encode(continuation)
        full = self._encode(context + continuation)
        common = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prefix, full, strict=False))
        shared = len(list(common))
        return full[:shared], full[shared:]

    def windows(self, text: str, longest: int) -> Iterator[Pair]:
        """Yield windows of a text; each one after the first begins with the previous token."""
        windows = get_rolling_token_windows(
            self._encode(text), prefix_token=NONE, max_seq_len=longest, context_len=min(2, longest)
        )
        yield from map(make_disjoint_window, windows)


class HarnessReader:
    """Reads texts for Hugging Face folders by the rules of the ``hf`` model of the harness.

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
        """Return the tokens of both, split after as many tokens as the context has by itself."""
        if not context:
            target = self._tokenizer.encode_prompt(continuation, framed=False)
            return (target[:1], target[1:]) if target[:1] == [self._prefix] else ([self._prefix], target)
        context, continuation = split_spaces(context, continuation)
        prefix = self.prompt(context)
        if self._apart:
            return prefix, self._tokenizer.encode_prompt(continuation, framed=False)
        return prefix, self.prompt(context + continuation)[len(prefix) :]

    def windows(self, text: str, longest: int) -> Iterator[Pair]:
        """Yield windows of a text, the first after the begin token, or else the end token."""
        windows = get_rolling_token_windows(
            self.prompt(text), prefix_token=self._prefix, max_seq_len=longest - 1, context_len=1
        )
        yield from map(make_disjoint_window, windows)
