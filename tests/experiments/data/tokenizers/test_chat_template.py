"""Chat templates come from elsewhere: they read nothing, and take little time and memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from archbench.experiments.data.tokenizers.chat_template import render_messages
from archbench.experiments.runtime.errors import ConfigError, DataError

MESSAGES = [{"role": "user", "content": "{{ 7 * 7 }} {% raw %} <b> é"}]


def render(folder: Path, template: str) -> str:
    (folder / "chat_template.jinja").write_text(template)
    return render_messages(folder, MESSAGES)


def test_what_a_message_says_is_text(tmp_path: Path) -> None:
    assert render(tmp_path, "{{ messages[0].content }}") == MESSAGES[0]["content"]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 'a' * 10**10 }}", "MemoryError"),
        ("{{ '%1000000000d' % 1 }}", "MemoryError"),
        ("{{ [0] * 10**10 }}", "MemoryError"),
        ("{{ 'a' | center(10**10) }}", "MemoryError"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ nothing.more }}", "undefined"),
        ("{% for %}", "Expected an expression"),
        pytest.param("{{ lipsum(n=10**7) }}", "more than 10 s or 1 GiB", marks=pytest.mark.full),
    ],
)
def test_a_template_that_takes_too_much_or_fails_is_refused(tmp_path: Path, template: str, said: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=rf"the chat template of .* refuses them: .*{said}"):
        render(tmp_path, template)
    assert time.monotonic() - began < 120


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"chat_template\.jinja: cannot be read"):
        render_messages(tmp_path, MESSAGES)
