import ast
import re

from archbench.experiments.data.corpus import CorpusConfig, documents
from archbench.experiments.data.python_docs import LIBRARY, REFERENCE, embedded_documents, module_docstrings


def paragraphs(text):
    plain = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
    return [p for p in plain if len(p) >= 40]


def test_no_paragraph_appears_twice_so_none_of_train_is_in_test():
    seen = {}
    for split, document in documents(CorpusConfig()):
        for paragraph in paragraphs(document.text):
            assert paragraph not in seen, (split, document.name, seen.get(paragraph))
            seen[paragraph] = (split, document.name)
    assert {split for split, _ in seen.values()} == {"train", "validation", "test"}


def test_it_is_documentation_of_the_language_and_the_library_but_not_of_tests():
    by_name = {d.name: d.text for d in embedded_documents()}
    assert "JavaScript Object Notation" in by_name[LIBRARY + "json/__init__.py"]
    assert "is used for conditional execution" in "".join(
        text for name, text in by_name.items() if name.startswith(REFERENCE)
    )
    assert not [name for name in by_name if "/test/" in name or "/tests/" in name or "site-packages" in name]
    assert sum(map(len, by_name.values())) > 1_000_000
    assert all(text.endswith("\n") and text.strip() for text in by_name.values())


def test_the_halves_make_the_whole():
    def names(source):
        return [(split, d.name) for split, d in documents(CorpusConfig(source=source))]

    assert names("embedded") == names("embedded_reference") + names("embedded_library")


def test_docstrings_come_in_source_order_from_every_depth():
    source = '''
"""module"""
class A:
    """class"""
    def f(self):
        """method"""
        x = """no docstring"""
        def g():
            """inner"""
try:
    async def h():
        """in try"""
except ImportError:
    def h():
        """in except"""
if True:
    def i():
        """in if"""
'''
    expected = ["module", "class", "method", "inner", "in try", "in except", "in if"]
    assert list(module_docstrings(ast.parse(source))) == expected
