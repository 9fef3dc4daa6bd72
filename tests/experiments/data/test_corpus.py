import os
from collections import Counter

import pytest

from archbench.experiments.data.corpus import CorpusConfig, documents, identity


def write_files(folder, count):
    folder.mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"{i}.txt").write_text(f"document {i} of {folder.name}")
    return str(folder / "*.txt")


def splits(config):
    return {document.name: split for split, document in documents(config)}


def test_embedded_bytes_are_split_about_90_5_5_in_both_halves():
    for source in ("embedded_reference", "embedded_library"):
        size = Counter()
        for split, document in documents(CorpusConfig(source=source)):
            size[split] += len(document.text)
        total = size.total()
        assert 0.86 < size["train"] / total < 0.94
        assert 0.025 < size["validation"] / total < 0.075
        assert 0.025 < size["test"] / total < 0.075


def test_where_a_document_goes_depends_on_its_name_alone(tmp_path):
    few = splits(CorpusConfig(source="files", paths=[write_files(tmp_path / "a", 400)]))
    many = splits(CorpusConfig(source="files", paths=[write_files(tmp_path / "b", 800)]))
    share = Counter(many.values())
    assert few == {name: many[name] for name in few}
    assert 20 <= share["validation"] <= 65
    assert 20 <= share["test"] <= 65


def test_named_splits_are_kept_and_only_the_others_carved(tmp_path):
    train, held_out = write_files(tmp_path / "a", 300), write_files(tmp_path / "b", 30)
    config = CorpusConfig(source="files", paths=[train], test_paths=[held_out])
    pairs = list(documents(config))
    count = Counter(split for split, _ in pairs)
    assert count["test"] == 30
    assert count["train"] + count["validation"] == 300
    assert 0 < count["validation"] < 40
    assert identity(config)["carved"] == ["validation"]
    named = CorpusConfig(source="files", paths=[train], test_paths=[held_out], validation_paths=[held_out])
    assert Counter(s for s, _ in documents(named)) == {"train": 300, "validation": 30, "test": 30}


def test_identity_follows_the_files_and_ignores_how_rows_arrive(tmp_path):
    config = CorpusConfig(source="files", paths=[write_files(tmp_path / "a", 3)])
    before = identity(config)
    assert identity(config) == before
    os.utime(tmp_path / "a" / "1.txt", (1, 1))
    assert identity(config) == before
    stat, text = (tmp_path / "a" / "1.txt").stat(), (tmp_path / "a" / "1.txt").read_text()
    (tmp_path / "a" / "1.txt").write_text(text.swapcase())
    os.utime(tmp_path / "a" / "1.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (tmp_path / "a" / "1.txt").stat().st_size == stat.st_size
    assert identity(config) != before  # of equal size and time
    whole = CorpusConfig(source="hub", dataset="someone/something")
    streamed = CorpusConfig(source="hub", dataset="someone/something", streaming=True)
    assert identity(whole) == identity(streamed)
    assert identity(CorpusConfig(source="hub", dataset="someone/other")) != identity(whole)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "embeded"}, "did you mean 'embedded'"),
        ({"source": "files"}, "needs paths"),
        ({"paths": ["a.txt"]}, "source=files"),
        ({"test_paths": ["a.txt"]}, "source=files"),
        ({"source": "hub"}, "needs dataset"),
        ({"dataset": "someone/something"}, "source=hub"),
        ({"source": "hub", "dataset": "x", "max_documents": 0}, "max_documents=0"),
    ],
)
def test_contradictory_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CorpusConfig(**settings)
