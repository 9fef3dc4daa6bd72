"""Builds, trains or loads the tokenizer of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer

from archbench.experiments.data.tokenizers.bpe import BPETokenizer
from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer, identity
from archbench.experiments.data.tokenizers.tokenizer import ByteTokenizer, TextTokenizer, TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.special_files import check_file

BYTES_OF_TEXT = 2
"""Version of how the bytes of tokens are counted where they depend on the text.

Version 1 counted the bytes of the tokens' names."""


def tokenizer_description(config: TokenizerConfig) -> dict[str, object]:
    """Return the settings that decide the tokens of this type of tokenizer, fit for JSON."""
    settings: dict[str, object]
    if config.path is not None:
        folder = identity(Path(config.path))
        settings = {"kind": config.kind, "folder": folder, "post_processing": config.post_processing}
    else:
        settings = asdict(config)
        del settings["path"]
        if config.kind == "bytes":
            del settings["pre_tokenization"], settings["vocab_size"]
    return {**settings, "bytes_version": BYTES_OF_TEXT} if depends_on_text(config) else settings


def depends_on_text(config: TokenizerConfig) -> bool:
    """Return True where a token represents different bytes in different texts.

    Else ``TextTokenizer.fixed_bytes_V`` has them.
    """
    return config.kind == "folder" or bool(config.normalization)


def train_tokenizer(config: TokenizerConfig, num_sentinels: int, train_texts: Iterator[str]) -> TextTokenizer:
    """Make the tokenizer of a configuration; ``train_texts`` is read only where something is learned."""
    if config.path is not None:
        return FolderTokenizer(config, Path(config.path))
    if config.kind == "bytes":
        return ByteTokenizer(config, num_sentinels)
    return BPETokenizer.train(config, num_sentinels, train_texts)


def load_tokenizer(config: TokenizerConfig, num_sentinels: int, folder: Path) -> TextTokenizer:
    """Load the tokenizer that was saved in ``folder``. Raises DataError where its file is damaged."""
    if config.kind != "bpe":  # only BPE is trained on the text
        return train_tokenizer(config, num_sentinels, iter(()))
    path = folder / "tokenizer.json"
    check_file(path)
    try:
        return BPETokenizer(HFTokenizer.from_file(str(path)), num_sentinels)
    except Exception as error:  # the library raises no narrower class
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{path}: cannot be read ({reason}): restore it, or let it be written again"
        ) from error
