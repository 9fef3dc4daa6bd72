"""A pipe or an endless device in the place of a file is an error, not a command that waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.special_files import check_file
from tests import ROOT

CODE = """
import sys
from archbench.experiments.runtime.special_files import refuse_pipes
refuse_pipes()
for path in sys.argv[1:]:
    try:
        print(len(open(path, "rb").read()))
    except OSError as error:
        print(error.strerror)
"""


def test_opening_a_pipe_raises_and_a_substitution_of_the_shell_does_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "file").write_text("abc")
    words = f"'{tmp_path}/pipe' '{tmp_path}/zero' '{tmp_path}/file' /dev/null <(echo 12)"
    ended = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {words}', sys.executable, CODE],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    lines = ended.stdout.decode().splitlines()
    assert lines == ["it is a pipe, not a file", "it is an endless device, not a file", "3", "0", "3"]


def test_a_library_opens_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, kind in (("pipe", "a pipe"), ("", "a folder")):
        with pytest.raises(DataError, match=f"cannot be read: it is {kind}"):
            check_file(tmp_path / name)
    check_file(tmp_path / "missing")
    check_file(Path(__file__))
