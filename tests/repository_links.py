"""Absolute links in what is published: a package index shows README.md without the files beside it.

The address is that of the git remote ``origin``, so a fork has its own.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REMOTE = re.compile(r"(?:https://|ssh://)?(?:[^@/]+@)?([\w-]+(?:\.[\w-]+)+)(?::\d+)?[:/](.+?)(?:\.git)?/?")
"""``https://HOST/OWNER/NAME.git``, ``ssh://git@HOST/OWNER/NAME`` or ``git@HOST:OWNER/NAME.git``."""
RELATIVE_LINK = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|#)([^)\s]+)(?=\))")
"""A Markdown link or image of a file."""


def repository_url(root: Path) -> str | None:
    """Return the address of a checkout's repository without credentials; None if it has no public one."""
    remote = subprocess.run(["git", "remote", "get-url", "origin"], cwd=root, capture_output=True, text=True)
    found = REMOTE.fullmatch(remote.stdout.strip())
    return f"https://{found[1]}/{found[2]}" if found else None


def absolute_links(text: str, url: str, tag: str) -> str:
    """Return Markdown whose links of files are those of a tag in the repository."""

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}{url}/{view}/{tag}/{link[2]}"

    return RELATIVE_LINK.sub(absolute, text)


def write_links(sources: Path, url: str, tag: str) -> None:
    """Write absolute links into README.md, and those of the project into pyproject.toml."""
    readme = sources / "README.md"
    readme.write_text(absolute_links(readme.read_text(), url, tag))
    with (sources / "pyproject.toml").open("a") as file:
        file.write(
            f'\n[project.urls]\nRepository = "{url}"\nDocumentation = "{url}/tree/{tag}/docs"\n'
            f'Issues = "{url}/issues"\nChangelog = "{url}/blob/{tag}/CHANGELOG.md"\n'
        )
