"""Corpora of installed packages: their documents; another version or a changed file is an error."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from archbench.experiments.data import package_text
from archbench.experiments.data.corpus import CorpusConfig, documents, identity
from archbench.experiments.data.document import Document
from archbench.experiments.data.package_text import (
    PACKAGE_CODE,
    PACKAGE_DOCS,
    PACKAGE_LETTERS,
    VERSIONS,
    check_versions,
    letters,
    modules_of,
    package_documents,
    read_modules,
    text_hash,
)
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from tests import ROOT

MODULE = '''"""What the module is for."""

def f(x):
    """Return x. A paragraph that is long enough to be found twice."""
    return x
'''


@pytest.fixture
def modules(tmp_path: Path) -> list[tuple[str, Path]]:
    """200 modules, whose functions have the same docstring."""
    found = []
    for number in range(200):
        path = tmp_path / f"m{number}.py"
        path.write_text(MODULE.replace("What the", f"What number {number}, the" + " long" * 600))
        found.append((f"package/m{number}.py", path))
    (tmp_path / "empty.py").write_text("")
    return [*found, ("package/empty.py", tmp_path / "empty.py")]


def test_docs_have_docstrings_and_code_the_source(modules: list[tuple[str, Path]]) -> None:
    docs = list(read_modules(modules[-2:], docstrings=True))
    assert [document.name for document in docs] == ["package/m199.py"]
    assert docs[0].text.endswith("is for.\n\nReturn x. A paragraph that is long enough to be found twice.")
    code = list(read_modules(modules[-2:], docstrings=False))
    assert [document.text for document in code] == [modules[-2][1].read_text()]


def test_a_corpus_is_compared_with_its_hash(
    modules: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(package_text, "VERSIONS", {"numpy": VERSIONS["numpy"]})
    monkeypatch.setattr(package_text, "modules_of", lambda _: iter(modules))
    package_documents.cache_clear()
    with pytest.raises(DataError, match="installed files of numpy are not those of their versions") as error:
        package_documents(PACKAGE_DOCS)
    [start] = re.findall(r"hash ([0-9a-f]{16})", str(error.value))
    kept = list(package_text.without_repeats(read_modules(modules, docstrings=True)))
    whole = text_hash(kept)
    assert whole.startswith(start)
    monkeypatch.setitem(package_text.HASHES, PACKAGE_DOCS, whole)
    split_documents = list(documents(CorpusConfig(source=PACKAGE_DOCS)))
    sizes = Counter(split for split, _ in split_documents)
    assert sum(sizes.values()) == 200
    assert sizes["test"] > sizes["validation"] > 0
    for split, document in split_documents:
        assert len(document.text) > 2500 if split == "train" else len(document.text) == 2000
    assert sum("found twice" in document.text for _, document in split_documents) <= 1
    corpus, tokenizer = CorpusConfig(source=PACKAGE_DOCS), TokenizerConfig()
    prepared, opened = (open_token_file(corpus, tokenizer, 28, tmp_path / "cache") for _ in range(2))
    assert opened.meta == prepared.meta
    assert {split: counts["documents"] for split, counts in opened.meta["splits"].items()} == sizes
    lettered = package_documents(PACKAGE_LETTERS)
    assert [document.name for document in lettered] == [document.name for document in kept]
    assert set("".join(document.text for document in lettered)) <= set("abcdefghijklmnopqrstuvwxyz ")
    package_documents.cache_clear()


def test_letters_are_27_symbols() -> None:
    assert letters("\n>>> np.Fit(x_1,  É) # Done.\n") == "np fit x done"


def test_another_version_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_text, "VERSIONS", {"numpy": "1.0", "scipy": VERSIONS["scipy"]})
    with pytest.raises(
        DataError, match=rf"numpy {VERSIONS['numpy']}, not 1\.0: pip install numpy==1\.0 scipy"
    ):
        check_versions(PACKAGE_DOCS)


def test_the_versions_are_those_of_the_constraints_and_part_of_the_identity() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    assert {name: pinned[name] for name in VERSIONS} == VERSIONS
    assert identity(CorpusConfig(source=PACKAGE_CODE))["packages"] == VERSIONS


def test_tests_and_generated_modules_are_left_out() -> None:
    names = [name for name, _ in modules_of("numpy")]
    assert "numpy/linalg/_linalg.py" in names
    assert not [name for name in names if "/tests/" in name or name.endswith(("version.py", "__config__.py"))]
    assert names == sorted(names, key=lambda name: Path(name).parts)


def test_names_and_texts_decide_the_hash() -> None:
    hashes = {text_hash([Document(name, text)]) for name, text in (("a", "b"), ("ab", ""), ("a", "c"))}
    assert len(hashes) == 3
