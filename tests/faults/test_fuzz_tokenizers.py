"""F47: bits per byte of random tokenizers divide by the bytes of the text, or are refused by name."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from archbench.experiments.data.corpus import SPLITS
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.text.text import Text, TextConfig
from tests.faults.children import seeds
from tests.faults.random_tokenizers import random_folder, random_text

EACH = 4
"""Tokenizers for each seed."""
NORMALIZATIONS = ("nfc", "nfd", "nfkc", "nfkd", "lowercase", "strip_accents")


def random_config(rng: random.Random, folder: Path) -> tuple[TokenizerConfig, str]:
    """Return a random tokenizer, of a folder in most cases, and its settings in words."""
    after = rng.choice((["eos"], ["bos", "eos"], []))
    if rng.random() < 0.8:
        described = random_folder(rng, folder)
        return TokenizerConfig(kind="folder", path=str(folder), post_processing=after), described
    kind = rng.choice(("bytes", "bpe"))
    normalization = rng.sample(NORMALIZATIONS, rng.randrange(3))
    config = TokenizerConfig(kind=kind, normalization=normalization, vocab_size=260, post_processing=after)
    return config, str(config)


def write_texts(rng: random.Random, folder: Path) -> dict[str, list[str]]:
    """Write documents of each split; return them."""
    texts = {}
    for split in SPLITS:
        texts[split] = [random_text(rng) for _ in range(rng.choice((3, 8, 30)))] + [random_text(rng) * 20]
        rows = [json.dumps({"text": text}) for text in texts[split]]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    return texts


def opened(folder: Path, tokenizer: TokenizerConfig, rng: random.Random) -> Text:
    length = rng.choice((2, 5, 16))
    paths = {s: [str(folder / f"{s}.jsonl")] for s in SPLITS}
    return Text(
        TextConfig(
            source="files",
            paths=paths["train"],
            validation_paths=paths["validation"],
            test_paths=paths["test"],
            tokenizer=tokenizer,
            sequence_length=length,
            stride=rng.choice(("half", None, 1)),
            cache_dir=str(folder / "cache"),
        )
    )


def check(task: Text, texts: dict[str, list[str]], about: str) -> bool:
    """Compare all bytes of the held-out splits with those of their texts; return whether text is lost."""
    lossy = 0
    for split in ("validation", "test"):
        data = "".join(texts[split]).encode()
        count = task.num_examples(split)
        batch = task.batch(split, 0, 0, count)
        assert batch.bytes_BT is not None
        assert (batch.bytes_BT >= 0).all(), about
        assert batch.bytes_BT[batch.answer_BT].sum() == len(data), about
        assert sum(map(len, task.scored_texts(split, 0, 0, count))) == len(data), about
        for text, bytes_T in zip(task.window_texts(split, 0, 0, count), batch.bytes_BT, strict=True):
            assert len(text) == bytes_T.sum(), about
            assert text in data, about
        tokenizer = task.tokenizer
        changed = sum(
            tokenizer.decode(each.tokens_N) != text
            for text, each in zip(texts[split], tokenizer.encode_documents(texts[split]), strict=True)
        )
        assert task.lossy_documents(split) == changed, about
        lossy += changed
    assert not lossy or "does not give documents back" in str(task.note), about
    return lossy > 0


@seeds(8, recorded=40)
def test_f47_the_bytes_of_random_tokenizers_are_those_of_the_text(
    seed: int, tmp_path: Path, record: Any
) -> None:
    outcomes: Counter[str] = Counter()
    for case in range(EACH):
        number = 1000 * seed + case
        rng, folder = random.Random(number), tmp_path / str(case)
        tokenizer, described = random_config(rng, folder / "tokenizer")
        folder.mkdir(exist_ok=True)
        texts = write_texts(rng, folder)
        about = f"seed {number}: {described}"
        try:
            task = opened(folder, tokenizer, rng)
        except DataError as refusal:
            reason = str(refusal)
        else:
            outcomes["lossy" if check(task, texts, about) else "lossless"] += 1
            continue
        assert any(words in reason for words in REFUSALS), f"{about}: {reason}"
        outcomes["refused"] += 1
    print(f"seed {seed}: {dict(outcomes)}")
    record("F47", "random tokenizers on random texts", EACH, "the bytes of the text, losses said; or refused")


REFUSALS = (
    "the tokenizer knows no word", "makes no token of the document", "fails on a text", "no text in the",
    "only white space in the", "fewer than sequence_length", "symbols; set task.tokenizer.vocab_size",
)  # fmt: skip
