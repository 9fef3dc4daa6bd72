"""The hub's own folder layout, read from disk: no network is needed or used."""

import datasets
import huggingface_hub.constants
import pyarrow
import pyarrow.parquet
import pytest

from archbench.experiments.data import hub
from archbench.experiments.data.corpus import CorpusConfig, documents
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from tests.experiments.data.hub_folder import new_folder


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset of 200 training rows in two shards and 20 test rows; caches stay in ``tmp_path``."""
    folder = new_folder(tmp_path, monkeypatch)

    def write(name, numbers):
        rows = [{"body": f"row {i} of {name} é"} for i in numbers]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "data" / f"{name}.parquet")

    write("train-00000-of-00002", range(100))
    write("train-00001-of-00002", range(100, 200))
    write("test-00000-of-00001", range(20))
    return folder


def corpus(folder, **changes):
    settings = {"dataset": str(folder), "column": "body", "validation_split": None} | changes
    return CorpusConfig(source="hub", **settings)


def test_streaming_gives_the_same_token_files(dataset, tmp_path):
    files = [
        open_token_file(
            corpus(dataset, streaming=streaming),
            TokenizerConfig(kind="bpe", vocab_size=270),
            num_sentinels=2,
            cache_dir=tmp_path / f"cache-{streaming}",
        )
        for streaming in (False, True)
    ]
    whole, streamed = files
    assert whole.fingerprint == streamed.fingerprint
    for name in ("train.bin", "validation.bin", "test.bin", "meta.json", "tokenizer.json"):
        assert (whole.folder / name).read_bytes() == (streamed.folder / name).read_bytes()
    assert whole.meta["splits"]["test"]["documents"] == 20
    counts = [whole.meta["splits"][s]["documents"] for s in ("train", "validation")]
    assert sum(counts) == 200
    assert 1 <= counts[1] <= 30
    assert whole.meta["source"]["carved"] == ["validation"]
    test_text = whole.tokenizer.decode(whole.tokens["test"])
    assert test_text == "".join(f"row {i} of test-00000-of-00001 é" for i in range(20))


@pytest.mark.parametrize("streaming", [False, True])
def test_max_documents_limits_each_split(dataset, streaming):
    pairs = list(documents(corpus(dataset, streaming=streaming, max_documents=7)))
    assert [d.name for split, d in pairs if split == "test"] == [f"test#{i}" for i in range(7)]
    assert len(pairs) == 14


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column": "boddy"}, "row 0: no column 'boddy'; did you mean 'body'"),
        ({"validation_split": "validation"}, "split 'validation': no such split.* train, test.* null carves"),
        ({"dataset_config": "other"}, "config 'other', split 'train': not found"),
        ({"dataset": "no-such-owner/no-such-dataset"}, "not found .*task.source=embedded"),
        ({"dataset": "/no/such/folder"}, "not found"),
    ],
)
def test_what_is_missing_is_named(dataset, streaming, changes, message):
    with pytest.raises(DataError, match=message):
        list(documents(corpus(dataset, streaming=streaming, **changes)))


def test_a_dataset_that_needs_its_own_code_is_refused_and_the_code_not_run(dataset, tmp_path):
    script = tmp_path / "coded"
    script.mkdir()
    witness = tmp_path / "was-run"
    (script / "coded.py").write_text(f"open({str(witness)!r}, 'w')\n")
    with pytest.raises(DataError, match="split 'train'"):
        list(documents(corpus(script)))
    assert not witness.exists()


def test_a_hub_out_of_reach_is_asked_once(dataset, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    hub._stop_asking_where_unreachable.cache_clear()
    asked, honest = [], hub.socket.create_connection
    monkeypatch.setattr(hub.socket, "create_connection", lambda *a, **k: asked.append(a) or honest(*a, **k))
    for _ in range(2):
        with pytest.raises(DataError, match=r"dataset 'nobody/nothing'.*not found.*local folder"):
            next(iter(documents(corpus("nobody/nothing"))))
    assert len(asked) == 1
    assert "127.0.0.1 cannot be reached" in capsys.readouterr().err
    hub._stop_asking_where_unreachable.cache_clear()


def test_a_folder_with_brackets_is_refused_by_name(dataset):
    marked = dataset.rename(dataset.with_name("hub[1]"))
    with pytest.raises(DataError, match=r"hub\[1\] for a pattern: rename the folder"):
        list(documents(corpus(marked)))
