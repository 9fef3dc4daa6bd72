"""The published description links to the files of its tag in the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests import ROOT
from tests.release import git
from tests.repository_links import absolute_links, repository_url, write_links

URL = "https://example.org/lab/archbench"


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("https://example.org/lab/archbench.git", URL),
        ("https://user:secret@example.org/lab/archbench", URL),
        ("ssh://git@example.org:22/lab/archbench.git", URL),
        ("git@example.org:lab/archbench.git", URL),
        ("/srv/git/archbench.git", None),
        ("../archbench", None),
        ("http://localhost/archbench", None),
        (None, None),
    ],
)
def test_the_address_is_that_of_origin_without_credentials(
    remote: str | None, url: str | None, tmp_path: Path
) -> None:
    git(tmp_path, "init", "--quiet")
    if remote:
        git(tmp_path, "remote", "add", "origin", remote)
    assert repository_url(tmp_path) == url


def test_links_of_files_are_absolute_and_others_are_kept() -> None:
    text = "![a, b](docs/a.png) [b](LICENSE), [c](docs/c.md#d) [e](https://e.org/f.md) [g](#h) [1, 2] (3)"
    assert absolute_links(text, URL, "v1.0.0") == (
        f"![a, b]({URL}/raw/v1.0.0/docs/a.png) [b]({URL}/blob/v1.0.0/LICENSE), "
        f"[c]({URL}/blob/v1.0.0/docs/c.md#d) [e](https://e.org/f.md) [g](#h) [1, 2] (3)"
    )


def test_the_description_has_no_link_of_a_file(tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    write_links(tmp_path, URL, "v1.0.0")
    links = re.findall(r"\]\(([^)]+)\)", (tmp_path / "README.md").read_text())
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    images = re.findall(r"!\[[^]]*\]\((.*?)\)", (tmp_path / "README.md").read_text())
    assert images
    for link in images:
        assert (ROOT / link.removeprefix(f"{URL}/raw/v1.0.0/")).is_file()
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == URL
