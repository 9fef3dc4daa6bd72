"""The bytes behind tokens are those of the text that the tokenizer was given, whatever their names."""

import random
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from archbench.experiments.data.tokenizers.tokenizer import bytes_of_tokens
from archbench.experiments.runtime.errors import DataError
from tests.experiments.data.tokenizers.test_folder_tokenizer import opened, saved
from tests.faults.random_tokenizers import random_folder, random_text

BYTE_LEVEL = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
EOS = {"tokenizer_config": {"eos_token": "</s>"}}


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        ("abc", [(0, 1), (1, 3)], [1, 2]),
        ("  ab  c ", [(2, 4), (6, 7)], [4, 4]),  # what no token covers belongs to the next, or to the last
        ("é漢🙂", [(0, 1), (1, 2), (2, 3)], [2, 3, 4]),
        ("漢", [(0, 1)] * 3, [1, 1, 1]),
        ("漢a", [(0, 1), (0, 1), (1, 2)], [1, 2, 1]),
        ("漢", [(0, 1)] * 4, [0, 1, 1, 1]),  # a mark of the beginning, then bytes
        ("ab", [(0, 2), (0, 1), (1, 2)], [2, 0, 0]),
        ("ab", [(0, 0), (0, 0)], [1, 1]),
        ("\r\n", [(0, 1), (1, 2)], [1, 1]),
    ],
)
def test_bytes_by_hand(text: str, spans: list[tuple[int, int]], expected: list[int]) -> None:
    assert bytes_of_tokens(text, spans).tolist() == expected


def byte_level(added: list[AddedToken], *before: object, **options: bool) -> HFTokenizer:
    tokenizer = HFTokenizer(models.BPE(dict(BYTE_LEVEL), []))
    stages = [*before, pre_tokenizers.ByteLevel(**options)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(stages)  # type: ignore[assignment, arg-type]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.add_tokens(added)
    return tokenizer


def pieces(model: models.Model, pre_tokenizer: object, *normalizer: object) -> HFTokenizer:
    tokenizer = HFTokenizer(model)  # type: ignore[arg-type]
    tokenizer.pre_tokenizer = pre_tokenizer  # type: ignore[assignment]
    if normalizer:
        tokenizer.normalizer = normalizers.Sequence(list(normalizer))  # type: ignore[assignment, arg-type]
    tokenizer.add_special_tokens(["</s>", "[UNK]"])
    return tokenizer


STRIPPING = [AddedToken("<x>", lstrip=True, rstrip=True)]
SPACES = pre_tokenizers.Whitespace()
WORDS = models.WordLevel({"[UNK]": 0, "foo": 1, "e": 2, "(": 3, "iv": 4}, unk_token="[UNK]")
CHARACTERS = models.BPE({c: i for i, c in enumerate("abf oé漢\n")}, [])


@pytest.mark.parametrize(
    ("tokenizer", "text", "lossless"),
    [
        (byte_level([], add_prefix_space=False), " é  漢🙂\r\n", True),
        (byte_level([AddedToken("<x>")], add_prefix_space=True), "a<x>b <x>", False),
        (byte_level(STRIPPING, add_prefix_space=False), "a  <x> \n b", False),
        (byte_level([], pre_tokenizers.Whitespace(), add_prefix_space=False), "  a\r\n b  ", False),
        (pieces(WORDS, SPACES), "foo(漢字) foo 🙂🙂", False),
        (pieces(WORDS, SPACES, normalizers.NFKC(), normalizers.Lowercase()), "Ⅳ FOO", False),
        (pieces(WORDS, SPACES, normalizers.BertNormalizer()), "É E\u0301 \x01foo", False),
        (pieces(CHARACTERS, pre_tokenizers.Split("", "isolated")), "foo é漢\n", False),  # it has no decoder
        (pieces(CHARACTERS, pre_tokenizers.Split(Regex(r"\s"), "removed")), "  foo 🙂 é", False),
    ],
)  # fmt: skip
def test_no_byte_is_lost_or_counted_twice(
    tokenizer: HFTokenizer, text: str, lossless: bool, tmp_path: Path
) -> None:
    folder = opened(saved(tokenizer, tmp_path / "folder", **EOS))
    (tokenized,) = folder.encode_documents([text])
    assert tokenized.bytes_N.sum() == len(text.encode())
    assert tokenized.lossless == lossless


def test_a_text_without_tokens_has_its_bytes_at_its_end_token(tmp_path: Path) -> None:
    folder = saved(pieces(WORDS, SPACES), tmp_path / "folder", **EOS)
    (framed,), (bare,) = (
        opened(folder, post_processing=after).encode_documents([" \r\n"]) for after in (["eos"], [])
    )
    assert framed.bytes_N.tolist() == [3]
    assert bare.bytes_N.tolist() == bare.tokens_N.tolist() == []


@pytest.mark.parametrize("seed", range(30))
def test_bytes_of_random_tokenizers_sum_to_those_of_random_texts(seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"tokens {seed}")
    described = random_folder(rng, tmp_path / "folder")
    tokenizer = opened(tmp_path / "folder", post_processing=rng.choice((["eos"], ["bos", "eos"])))
    for _ in range(20):
        text = random_text(rng)
        try:
            (tokenized,) = tokenizer.encode_documents([text])
        except DataError:  # a panic of the package
            continue
        assert len(tokenized.bytes_N) == len(tokenized.tokens_N), described
        assert (tokenized.bytes_N >= 0).all(), (described, text)
        assert tokenized.bytes_N.sum() == len(text.encode()), (described, text)
        assert tokenized.lossless == (tokenizer.decode(tokenized.tokens_N) == text), (described, text)
