import json
import os

import pyarrow
import pyarrow.parquet
import pytest

from archbench.experiments.data.local_files import find_files, read_files, rows_of_file
from archbench.experiments.runtime.errors import DataError

TEXTS = ["first\nline", "", "Grüße 漢字 🙂", "last"]


def read(*patterns, column="text"):
    return list(read_files(find_files([str(p) for p in patterns]), column))


def write_rows(folder):
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    (folder / "a.json").write_text(json.dumps(rows))
    (folder / "a.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet")


def test_every_row_format_holds_the_same_texts(tmp_path):
    write_rows(tmp_path)
    for suffix in ("json", "jsonl", "parquet"):
        documents = read(tmp_path / f"a.{suffix}")
        assert [d.text for d in documents] == TEXTS
        assert len({d.name for d in documents}) == len(TEXTS)


def test_text_files_are_whole_documents_named_below_their_common_folder(tmp_path):
    for name in ("one/a.txt", "two/a.txt", "two/deep/b.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"r\r\n" + name.encode())
    documents = read(tmp_path / "**" / "*.txt", tmp_path / "**" / "*.md", tmp_path / "one" / "a.txt")
    assert [d.name for d in documents] == ["one/a.txt", "two/a.txt", "two/deep/b.md"]
    assert documents[0].text == "r\r\none/a.txt"


def test_bad_utf8_is_reported_with_file_and_byte(tmp_path):
    (tmp_path / "a.txt").write_bytes("é".encode() * 5 + b"\xff tail")
    with pytest.raises(DataError, match=r"a\.txt: byte 10 \(0xff\) is not UTF-8"):
        read(tmp_path / "a.txt")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "\xe9t\xe9"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl: byte 27 \(0xe9\) is not UTF-8"):
        read(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n' + bytes(9))
    with pytest.raises(DataError, match=r"a\.jsonl: byte 17 is zero, .*the file is damaged"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_a_missing_column_names_the_nearest(tmp_path, suffix):
    write_rows(tmp_path)
    with pytest.raises(DataError, match=rf"a\.{suffix}.*no column 'txt'; did you mean 'text'"):
        read(tmp_path / f"a.{suffix}", column="txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", r"a\.txt: the file is empty"),
        ("a.csv", "text\n1\n", r"cannot read '\.csv' files"),
        ("a.json", '{"text": "x"}', "expected a list of objects, got dict"),
        ("a.json", '[\n{"text": }]', r"a\.json, line 2: not JSON"),
        ("a.jsonl", '{"text": "x"}\n{"text"', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"text": "x"}\n7\n', r"a\.jsonl, line 2: expected an object"),
        ("a.jsonl", '{"text": null}', r"a\.jsonl, line 1: column 'text' holds NoneType"),
        ("a.jsonl", '{"text": "ab\\ud800"}', r"a\.jsonl, line 1: .* surrogate pair at character 2"),
        ("a.parquet", "no parquet", r"a\.parquet: not a Parquet file"),
    ],
)
def test_files_that_cannot_be_used_are_reported_with_their_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_a_pattern_without_files_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"no file at '.*nothing\*\.txt'"):
        read(tmp_path / "nothing*.txt")


def test_quotation_marks_are_marks_in_csv_and_text_in_tsv(tmp_path):
    (tmp_path / "a.csv").write_text('source,target\n"one, ""two""\nthree",four\n')
    assert list(rows_of_file(tmp_path / "a.csv", [])) == [
        ("line 3", {"source": 'one, "two"\nthree', "target": "four"})
    ]
    (tmp_path / "a.tsv").write_text('source\ttarget\nsay "one\tsay two"\n')
    assert list(rows_of_file(tmp_path / "a.tsv", [])) == [
        ("line 2", {"source": 'say "one', "target": 'say two"'})
    ]
    (tmp_path / "b.csv").write_text('source,target\n"one,two\n')
    with pytest.raises(DataError, match=r"b.csv, line 2: .*mend the line"):
        list(rows_of_file(tmp_path / "b.csv", []))


@pytest.mark.parametrize("suffix", ["txt", "json", "jsonl", "csv", "tsv"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, suffix):
    content = {
        "txt": "two\r\nlines",
        "json": '[{"text": "a"}]',
        "jsonl": '{"text": "a"}\r\n{"text": "b"}',
        "csv": "text,label\n\ufeffa,b\n",
        "tsv": "text\tlabel\na\tb\n",
    }[suffix]
    plain, marked = tmp_path / f"plain.{suffix}", tmp_path / f"marked.{suffix}"
    plain.write_bytes(content.encode())
    marked.write_bytes(b"\xef\xbb\xbf" + content.encode())
    if suffix in ("csv", "tsv"):
        assert list(rows_of_file(marked, ["text"])) == list(rows_of_file(plain, ["text"]))
    else:
        assert [d.text for d in read(marked)] == [d.text for d in read(plain)]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_in_utf_16_says_how_to_convert_it(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("\ufefftext".encode(encoding))
    with pytest.raises(DataError, match=r"a\.txt: is UTF-16.*iconv -f UTF-16"):
        read(tmp_path / "a.txt")


def test_a_path_with_brackets_is_a_path_before_it_is_a_pattern(tmp_path):
    for folder in ("d[12]", "d1", "d2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(folder)
    assert [d.text for d in read(tmp_path / "d[12]" / "a.txt")] == ["d[12]"]
    (tmp_path / "d[12]" / "a.txt").unlink()
    assert [d.text for d in read(tmp_path / "d[12]" / "a.txt")] == ["d1", "d2"]


def test_a_csv_field_may_hold_a_long_document(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"' + "x " * 100_000 + '",a\n')
    [(_, row)] = rows_of_file(tmp_path / "a.csv", ["text"])
    assert len(row["text"]) == 200_000


def test_an_empty_csv_file_has_no_rows_and_a_column_of_two_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("")
    assert list(rows_of_file(tmp_path / "a.csv", ["text"])) == []
    (tmp_path / "a.csv").write_text("text,other,text,other\n1,2,3,4\n")
    assert len(list(rows_of_file(tmp_path / "a.csv", ["label"]))) == 1
    with pytest.raises(DataError, match=r"a\.csv, line 1: two columns are called 'text'"):
        list(rows_of_file(tmp_path / "a.csv", ["text"]))


@pytest.mark.parametrize("suffix", ["", ".txt"])
def test_a_pipe_is_named_as_one(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    with pytest.raises(DataError, match=r"pipe.* cannot be read: it is a pipe; name a file"):
        find_files([str(tmp_path / f"pipe{suffix}")])
