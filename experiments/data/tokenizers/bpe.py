"""Byte-level BPE, trained on the training split (Sennrich et al. 2016; Radford et al. 2019)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HFTokenizer

from archbench.experiments.data.tokenizers.tokenizer import (
    TextTokenizer,
    TokenizedText,
    TokenizerConfig,
    byte_level_alphabet,
    make_normalizer,
    tokenize_with_offsets,
)
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.errors import DataError

# "byte_level" is the pattern of GPT-2. The other stages preserve the text at which they split.
_STAGES = {
    "whitespace": lambda: pre_tokenizers.Split(Regex(r"\s+"), "merged_with_next"),
    "digits": lambda: pre_tokenizers.Digits(individual_digits=True),
    "byte_level": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
}


class BPETokenizer(TextTokenizer):
    """Byte-level BPE by the ``tokenizers`` package. Any text can be encoded.

    Decoding gives back the text as the normalization has changed it.
    """

    def __init__(self, tokenizer: HFTokenizer, num_sentinels: int) -> None:
        self.vocabulary = Vocabulary(
            num_symbols=tokenizer.get_vocab_size() - 4 - num_sentinels, num_sentinels=num_sentinels
        )
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # "⟨eos⟩" in a text is text
        character_to_byte = byte_level_alphabet()
        self.token_bytes = []
        for i in range(self.vocabulary.num_symbols):
            token = tokenizer.id_to_token(i)
            assert token is not None
            self.token_bytes.append(bytes(character_to_byte[c] for c in token))
        self.token_bytes += [b""] * (4 + num_sentinels)
        if tokenizer.normalizer is None:
            self.fixed_bytes_V = np.array([len(b) for b in self.token_bytes], dtype=np.uint32)
        frame = tokenizer.encode("").ids
        self._before = [i for i in frame if i == self.vocabulary.bos]
        self._after = [i for i in frame if i == self.vocabulary.eos]

    @classmethod
    def train(cls, config: TokenizerConfig, num_sentinels: int, texts: Iterator[str]) -> BPETokenizer:
        """Train the merges on ``texts``, then add the special tokens after them."""
        tokenizer = HFTokenizer(models.BPE())
        normalizer = make_normalizer(config)
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        stages = [_STAGES[name]() for name in config.pre_tokenization]
        if "byte_level" not in config.pre_tokenization:  # without its pattern, text still turns into bytes
            stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(stages)
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            min_frequency=2,
            initial_alphabet=sorted(byte_level_alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator((piece for text in texts for piece in _pieces(text)), trainer)
        if tokenizer.get_vocab_size() < config.vocab_size:
            raise DataError(
                f"task.tokenizer.vocab_size={config.vocab_size}: the training text yields only "
                f"{tokenizer.get_vocab_size()} symbols; set task.tokenizer.vocab_size to that or fewer"
            )
        _add_special_tokens(tokenizer, config, num_sentinels)
        return cls(tokenizer, num_sentinels)

    def encode_documents(self, texts: Sequence[str]) -> list[TokenizedText]:
        if self.fixed_bytes_V is None:
            return tokenize_with_offsets(self._tokenizer, texts, self.decode, self._before, self._after)
        rows = [np.array(e.ids, dtype=np.uint32) for e in self._tokenizer.encode_batch_fast(list(texts))]
        return [self.lossless_text(tokens_N) for tokens_N in rows]

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def save(self, folder: Path) -> None:
        # ``save`` of the package does not raise OSError where the disk is full.
        (folder / "tokenizer.json").write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")


LONGEST = 1_000_000
"""Characters passed to the trainer in one piece; the package needs 170 bytes of memory for each."""
_SPACE = re.compile(r"(?<=\S)\s")
_LONG_WORD = re.compile(r"(\S{1000})(?=\S)")


def _pieces(text: str) -> Iterator[str]:
    """Yield a text, a long one in pieces that begin with white space, where every pattern also splits.

    In long texts, 1,000 characters without white space are also split, because the time for a word grows
    with the square of its length.
    """
    if len(text) > LONGEST:
        text = _LONG_WORD.sub(r"\1\n", text)
    begin = 0
    while len(text) - begin > LONGEST:
        spaces = [space.start() for space in _SPACE.finditer(text, begin + LONGEST // 2, begin + LONGEST)]
        end = spaces[-1] if spaces else begin + LONGEST
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _add_special_tokens(tokenizer: HFTokenizer, config: TokenizerConfig, num_sentinels: int) -> None:
    """Add pad, bos, eos, mask and sentinels at the ids of ``Vocabulary``, and the post-processor.

    The brackets in their names are not in the byte-level alphabet, so no merge can have the same name.
    """
    v = Vocabulary(num_symbols=tokenizer.get_vocab_size(), num_sentinels=num_sentinels)
    ids = {"⟨pad⟩": v.pad, "⟨bos⟩": v.bos, "⟨eos⟩": v.eos, "⟨mask⟩": v.mask}
    for i in reversed(range(num_sentinels)):
        ids[f"⟨sentinel {i}⟩"] = v.sentinel(i)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ids])
    assert all(tokenizer.token_to_id(name) == i for name, i in ids.items())
    used = [f"⟨{name}⟩" for name in config.post_processing]
    prefix, suffix = [n for n in used if n == "⟨bos⟩"], [n for n in used if n == "⟨eos⟩"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*prefix, "$A", *suffix], special_tokens=[(name, ids[name]) for name in used]
    )
