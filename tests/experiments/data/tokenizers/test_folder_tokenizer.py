"""Tokenizers of folders: their ids stay, their special tokens are found, their bytes are counted."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from archbench.experiments.data.corpus import CorpusConfig
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.folder_tokenizer import FolderTokenizer
from archbench.experiments.data.tokenizers.make_tokenizer import train_tokenizer
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError

TEXTS = ["def f(x): return x + 1  # naïve 🙂\n", "", " ", "two  spaces, </s> and [SEP] as text\tand 漢字"]


def opened(folder: Path, **settings) -> FolderTokenizer:
    return FolderTokenizer(TokenizerConfig(kind="folder", path=str(folder), **settings), folder)


def saved(tokenizer: HFTokenizer, folder: Path, **files) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def byte_level(folder: Path) -> Path:
    """As GPT-2: one special token, the last; a table with more rows than tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = HFTokenizer(models.BPE({c: i for i, c in enumerate(alphabet)} | {"ab": 256}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.add_tokens(["    "])
    tokenizer.enable_truncation(5)
    return saved(tokenizer, folder, config={"vocab_size": 300, "eos_token_id": [257], "bos_token_id": 257})


def word_piece(folder: Path) -> Path:
    """As BERT: special tokens in the middle of the ids, lower case, pieces of words."""
    names = ["[PAD]", "a", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", ","]
    tokenizer = HFTokenizer(models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    roles = {
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": {"content": "[SEP]"},
        "mask_token": "[MASK]",
    }
    return saved(tokenizer, folder, tokenizer_config=roles)


def sentence_piece(folder: Path) -> Path:
    """As T5, with bytes for what has no token: marked spaces, sentinels from the last id down."""
    pieces = ["<pad>", "</s>", "<unk>", *[f"<0x{b:02X}>" for b in range(256)]]
    pieces += ["▁", "▁the", "▁cat", "s", "t", "<extra_id_1>", "<extra_id_0>"]
    vocabulary = [(piece, -float(i % 7)) for i, piece in enumerate(pieces)]
    tokenizer = HFTokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>"])
    return saved(tokenizer, folder, special_tokens_map={"eos_token": "</s>", "pad_token": "<pad>"})


def test_a_tokenizer_of_ours_is_the_same_from_its_folder(tmp_path: Path) -> None:
    config = TokenizerConfig(kind="bpe", vocab_size=270)
    ours = train_tokenizer(config, 3, iter(["the cat sat on the mat. " * 9, *TEXTS]))
    ours.save(tmp_path)
    theirs = opened(tmp_path)
    a, b = ours.vocabulary, theirs.vocabulary
    assert (a.size, a.num_symbols, a.pad, a.bos, a.eos, a.mask) == (
        b.size,
        b.num_symbols,
        b.pad,
        b.bos,
        b.eos,
        b.mask,
    )
    assert [a.sentinel(i) for i in range(3)] == [b.sentinel(i) for i in range(3)]
    assert torch.equal(a.is_symbol(), b.is_symbol())
    assert theirs.fingerprint == ours.fingerprint
    for a_text, b_text in zip(ours.encode_documents(TEXTS), theirs.encode_documents(TEXTS), strict=True):
        assert a_text.tokens_N.tolist() == b_text.tokens_N.tolist()
        assert a_text.bytes_N.sum() == b_text.bytes_N.sum()
    again = tmp_path / "again"
    again.mkdir()
    theirs.save(again)
    assert opened(again).vocabulary == b


def test_byte_level_tokens_are_counted_exactly(tmp_path: Path) -> None:
    tokenizer = opened(byte_level(tmp_path / "gpt"))
    v = tokenizer.vocabulary
    assert (v.pad, v.bos, v.eos, v.size) == (257, 257, 257, 300)
    assert v.is_symbol().nonzero().flatten().tolist() == [*range(257), 258]
    assert v.num_symbols == 258
    texts = [*TEXTS, "    x"]
    for text, tokenized in zip(texts, tokenizer.encode_documents(texts), strict=True):
        ids = tokenized.tokens_N
        assert ids[-1] == v.eos
        assert tokenized.bytes_N.sum() == len(text.encode())
        assert tokenized.lossless
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode(text) == ids[:-1].tolist()
    assert tokenizer.token_bytes[tokenizer.encode("ab")[0]] == b"ab"
    with pytest.raises(DataError, match="names no mask token"):
        _ = v.mask


def test_word_pieces_have_the_bytes_of_the_text_and_special_tokens_their_roles(tmp_path: Path) -> None:
    tokenizer = opened(word_piece(tmp_path / "bert"), post_processing=["bos", "eos"])
    v = tokenizer.vocabulary
    assert (v.pad, v.bos, v.eos, v.mask) == (0, 3, 4, 5)
    (tokenized,) = tokenizer.encode_documents(["The cats sat, [SEP]"])
    ids = tokenized.tokens_N.tolist()
    assert ids == [3, 6, 7, 8, 9, 10, 2, 2, 2, 4]  # "[SEP]" in a text is no special token
    assert tokenizer.decode(ids) == "the cats sat,"
    #  [CLS] The " cat" s " sat" , " [" SEP ] [SEP]
    assert tokenized.bytes_N.tolist() == [0, 3, 4, 1, 4, 1, 2, 3, 1, 0]
    assert not tokenized.lossless
    assert v.is_symbol().nonzero().flatten().tolist() == [1, 6, 7, 8, 9, 10]


def test_the_space_that_sentence_pieces_put_before_a_document_has_no_byte(tmp_path: Path) -> None:
    tokenizer = opened(sentence_piece(tmp_path / "t5"), post_processing=[])
    v = tokenizer.vocabulary
    assert (v.pad, v.eos, v.num_sentinels) == (0, 1, 2)
    assert [v.sentinel(0), v.sentinel(1)] == [v.size - 1, v.size - 2]
    for text in ("the cats", "s the 漢", "ts"):
        (tokenized,) = tokenizer.encode_documents([text])
        assert tokenizer.decode(tokenized.tokens_N) == text
        assert tokenized.bytes_N.sum() == len(text.encode())
        assert tokenized.lossless
        assert all(v.is_symbol()[tokenized.tokens_N.tolist()])


def test_a_corpus_is_the_same_wherever_its_tokenizer_lies(tmp_path: Path) -> None:
    first = byte_level(tmp_path / "one")
    second = Path(shutil.copytree(first, tmp_path / "two"))
    corpus = tmp_path / "text"
    corpus.mkdir()
    for number in range(400):
        (corpus / f"{number}.txt").write_text(f"abba {number} is a text of its own. " * 5)
    source = CorpusConfig(source="files", paths=[str(corpus / "*.txt")])
    files = [
        open_token_file(source, TokenizerConfig(kind="folder", path=str(folder)), 0, tmp_path / "cache")
        for folder in (first, second)
    ]
    assert files[0].folder == files[1].folder
    tokenizer = files[0].tokenizer
    counts = files[0].meta["splits"]["train"]
    assert len(files[0].tokens["train"]) == counts["tokens"] > 1000
    assert len(tokenizer.decode(files[0].tokens["train"]).encode()) == counts["bytes"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is no such file"),
        ({"tokenizer.json": "{"}, "unreadable"),
    ],
)
def test_folders_without_a_readable_tokenizer_are_refused(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=rf"tokenizer.json: {message}"):
        opened(tmp_path)


def test_a_folder_that_names_no_end_is_refused(tmp_path: Path) -> None:
    folder = byte_level(tmp_path / "gpt")
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match="name no eos_token"):
        opened(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "folder"}, "path=None with task.tokenizer.kind=folder"),
        ({"kind": "bytes", "path": "somewhere"}, "no other takes one"),
        ({"kind": "folder", "path": "x", "normalization": ["nfc"]}, "leave it"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenizerConfig(**settings)
