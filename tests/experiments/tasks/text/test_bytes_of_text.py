"""Bits per byte of text tasks divide by the bytes of the text, whatever tokens the tokenizer makes of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models, pre_tokenizers

from archbench.experiments.data.corpus import SPLITS
from archbench.experiments.data.preparation.merge import merge
from archbench.experiments.data.preparation.plan import begin
from archbench.experiments.data.preparation.processes import make_parts
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.token_stream import xz_bits_per_byte
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.evaluation.perplexity import text_rates
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.text.text import Text, TextConfig
from archbench.experiments.tasks.text.text_pairs import Pairs, PairsConfig
from tests.experiments.data.preparation.conftest import corpus, dataset  # noqa: F401 -- a fixture
from tests.experiments.data.tokenizers.test_folder_tokenizer import (
    byte_level,
    saved,
    sentence_piece,
    word_piece,
)
from tests.experiments.objectives import toys

LINES = ["The cat sat, naïve 漢字\r\n", "  the cats  🙂 sat\tthe end\n\n", "thé cat e\u0301 , , the cat\n"]
TEXTS = {split: [f"{split} {i}: {line * 3}" for i, line in enumerate(LINES)] for split in SPLITS}
FOLDERS = {"word_piece": word_piece, "sentence_piece": sentence_piece, "byte_level": byte_level}


def written(folder: Path, texts: dict[str, list[str]] = TEXTS) -> dict[str, list[str]]:
    """Write the documents of each split; return the settings that name them."""
    folder.mkdir(exist_ok=True)
    for split, documents in texts.items():
        rows = [json.dumps({"text": text}) for text in documents]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    keys = {"train": "paths", "validation": "validation_paths", "test": "test_paths"}
    return {key: [str(folder / f"{split}.jsonl")] for split, key in keys.items()}


def tokenizer_of(kind: str, folder: Path) -> TokenizerConfig:
    if kind in FOLDERS:
        return TokenizerConfig(kind="folder", path=str(FOLDERS[kind](folder / kind)))
    return TokenizerConfig(kind=kind, vocab_size=270, normalization=["nfkc", "lowercase"])


def text_task(kind: str, folder: Path, **settings: object) -> Text:
    return Text(
        TextConfig(
            source="files",
            **written(folder),
            tokenizer=tokenizer_of(kind, folder),
            sequence_length=8,
            cache_dir=str(folder / "cache"),
            **settings,
        )
    )


@pytest.mark.parametrize("kind", [*FOLDERS, "bytes", "bpe"])
def test_scores_references_and_rates_are_of_the_bytes_of_the_text(kind: str, tmp_path: Path) -> None:
    task = text_task(kind, tmp_path)
    data = {split: "".join(documents).encode() for split, documents in TEXTS.items()}
    model, objective = toys.build("decoder", task.vocabulary.size), CausalLM(CausalLMConfig(), task)
    (metric,) = measure(
        model, objective, task, "test", examples=None, batch_size=7, precision="fp32", by_slice=True
    )
    totals = np.array(metric.cluster_totals)
    # Folders without a begin token do not score the first token of the text: [UNK] of "test", the byte "t".
    scored = len(data["test"]) - {"word_piece": 4, "byte_level": 1}.get(kind, 0)
    assert totals[:, 1].sum() == scored
    assert metric.value == pytest.approx(totals[:, 0].sum() / scored)
    assert metric.slices is not None
    for by in ("recall", "kind"):
        assert sum(s.bytes for s in metric.slices if s.by == by) == scored
    references = {r.name: r.value for r in task.references()}
    assert references["xz"] == xz_bits_per_byte(data["train"], data["test"])
    tokens = len(task._streams["test"])
    assert references["uniform"] == pytest.approx(np.log2(task.vocabulary.size) * tokens / len(data["test"]))
    rates = text_rates(metric, task, 5)
    characters = len("".join(TEXTS["test"]))
    assert rates["bits_per_character"] == pytest.approx(metric.value * len(data["test"]) / characters)
    words = sum(len(text.encode().split()) for text in TEXTS["test"])
    assert task.words_per_byte("test") == words / len(data["test"])


def test_passages_of_training_text_keep_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archbench.experiments.data.token_stream.PASSAGE", 16)
    text = "".join(TEXTS["train"]).encode()
    parts = {}
    for limit in (70, 10_000):
        task = parts[limit] = text_task("word_piece", tmp_path / str(limit), train_tokens=limit)
        part = task._streams["train"]
        before_N = np.cumsum([0, *part.num_bytes(np.arange(len(part)))])
        assert len(part) == min(limit, len(task._file.streams["train"]))
        assert [len(part.text_of(0, end)) for end in range(len(part) + 1)] == before_N.tolist()
        count = task.num_examples("train")
        batch, windows = task.batch("train", 0, 0, count), task.window_texts("train", 0, 0, count)
        assert batch.bytes_BT is not None
        assert [len(window) for window in windows] == batch.bytes_BT.sum(1).tolist()
        assert all(reference.value > 0 for reference in task.references())
    whole = parts[10_000]._streams["train"]
    assert sorted(whole.text_of(0, len(whole))) == sorted(text)
    assert whole.text_of(0, len(whole)) != text


def test_tokenizers_that_lose_text_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lossy = text_task("word_piece", tmp_path)
    assert "warning: the tokenizer does not give documents back" in capsys.readouterr().err
    assert "3 of 3 in test" in str(lossy.note)
    assert lossy.lossy_documents("test") == 3
    kept = text_task("byte_level", tmp_path)
    assert capsys.readouterr().err == ""
    assert kept.note is None
    found = []
    for task in (lossy, kept):
        model, objective = toys.build("decoder", task.vocabulary.size), CausalLM(CausalLMConfig(), task)
        found += measure(model, objective, task, "test", examples=4, batch_size=4, precision="fp32")[:1]
    assert [metric.lossy_documents for metric in found] == [3, None]
    assert "loses text of 3 documents" in found[0].extent()


def test_a_tokenizer_that_knows_no_word_is_refused(tmp_path: Path) -> None:
    texts = {**TEXTS, "test": ["漢 字 🙂\n", "🙂🙂"]}
    config = TextConfig(
        source="files",
        **written(tmp_path, texts),
        tokenizer=tokenizer_of("word_piece", tmp_path),
        sequence_length=2,
        cache_dir=str(tmp_path / "cache"),
    )
    with pytest.raises(DataError, match="knows no word of the test split"):
        Text(config)
    assert not list((tmp_path / "cache").glob("*"))


def test_a_document_without_tokens_has_nothing_to_carry_its_bytes(tmp_path: Path) -> None:
    texts = {**TEXTS, "test": ["the cat", " \n"]}
    tokenizer = replace(tokenizer_of("word_piece", tmp_path), post_processing=[])
    config = TextConfig(source="files", **written(tmp_path, texts), tokenizer=tokenizer, sequence_length=2)
    with pytest.raises(DataError, match=r"no token of the document .*post_processing=\[eos\]"):
        Text(replace(config, cache_dir=str(tmp_path / "cache")))


@pytest.mark.parametrize("kind", ["word_piece", "bytes"])
def test_parts_of_a_dataset_have_the_bytes_of_its_text(kind: str, dataset: Path, tmp_path: Path) -> None:  # noqa: F811
    if kind == "word_piece":
        characters = "abcdefghijklmnopqrstuvwxyz0123456789"
        names = ["[UNK]", "</s>", *characters, *(f"##{c}" for c in characters)]
        made = HFTokenizer(models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
        made.add_special_tokens(["[UNK]", "</s>"])
        folder = saved(made, tmp_path / "folder", tokenizer_config={"eos_token": "</s>"})
        tokenizer = TokenizerConfig(kind="folder", path=str(folder))
    else:
        tokenizer = TokenizerConfig(normalization=["lowercase"])
    preparation = begin(corpus(dataset), tokenizer, 2, tmp_path / "parts")
    make_parts(preparation, 1)
    merge(preparation)
    alone = open_token_file(corpus(dataset), tokenizer, 2, tmp_path / "alone")
    found = {path.name: path.read_bytes() for path in preparation.destination.iterdir()}
    assert found == {path.name: path.read_bytes() for path in alone.folder.iterdir()}
    for split in SPLITS:
        stream, text = alone.streams[split], found[f"{split}.text"]
        assert alone.meta["splits"][split]["bytes"] == len(text)
        assert stream.num_bytes(np.arange(len(stream))).sum() == len(text)
        assert stream.text_of(0, len(stream)) == text


@pytest.mark.parametrize("kind", ["word_piece", "sentence_piece", "bytes"])
def test_targets_of_pairs_have_the_bytes_of_their_text(kind: str, tmp_path: Path) -> None:
    targets = ["The cat, naïve 漢字", "  the cats  🙂", "   ", "the " * 40]
    paths = {"test": tmp_path / "test.jsonl"}
    rows = [json.dumps({"source": "the cat", "target": target}) for target in targets]
    paths["test"].write_text("\n".join(rows))
    for split in ("train", "validation"):
        paths[split] = tmp_path / f"{split}.jsonl"
        rows = [json.dumps({"source": f"{split} {i}", "target": "the cat"}) for i in range(3)]
        paths[split].write_text("\n".join(rows))
    task = Pairs(
        PairsConfig(
            source="files",
            paths=[str(paths["train"])],
            validation_paths=[str(paths["validation"])],
            test_paths=[str(paths["test"])],
            tokenizer=replace(tokenizer_of(kind, tmp_path), post_processing=[]),
            max_target=30,
        )
    )
    batch = task.batch("test", 0, 0, 4)
    in_file = [batch.references.index(target) for target in targets]
    bytes_B = (batch.bytes_BT * batch.answer_BT).sum(1)[in_file].tolist()
    assert bytes_B[:3] == [len(target.encode()) for target in targets[:3]]
    cut = {"word_piece": "the " * 29 + "the", "sentence_piece": "the " * 29 + "the", "bytes": targets[3][:30]}
    assert bytes_B[3] == len(cut[kind])
    assert task.scored_texts("test", 0, 0, 4)[in_file[3]].decode() == cut[kind]
    assert task.lossy_documents("test") == {"word_piece": 4, "sentence_piece": 2, "bytes": 1}[kind]
    assert "in test" in str(task.note)
