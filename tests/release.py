"""Release a version: check it, build wheel and sdist, and tag it.

    python -m tests.release --version 1.0.0    write a version into the project files; commit them
    python -m tests.release                    check the committed files, and build into dist/
    python -m tests.release --tag              the same, then tag the commit

The distributions are built from the committed files, with absolute links to the repository of ``origin``. A
pushed tag is published by ``.github/workflows/release.yml``.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from tests import ROOT
from tests.repository_links import repository_url, write_links

VERSION = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")
"""A version that can be released."""
ANY_VERSION = re.compile(rf"{VERSION.pattern}(\.dev\d+)?")
UNRELEASED = "## [Unreleased]\n"
FIELDS = {
    "pyproject.toml": re.compile(r'^(version = ")(.*)(")$', re.MULTILINE),
    "CITATION.cff": re.compile(r"^(version: )(.*)()$", re.MULTILINE),
}
"""The line of each file that has the version."""


def version_of(root: Path) -> str:
    """Return the version of a checkout."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def write_version(root: Path, version: str, day: datetime.date) -> None:
    """Write a version into the project files; one without ``.dev`` gets a section of the changelog.

    Raises ValueError if it is not a version, or if its section is empty.
    """
    if not ANY_VERSION.fullmatch(version):
        raise ValueError(f"--version {version}: give a version such as 1.0.0, 1.0.0rc1 or 1.1.0.dev0")
    if VERSION.fullmatch(version):
        path = root / "CHANGELOG.md"
        before, heading, after = path.read_text().partition(UNRELEASED)
        if not after.partition("\n## ")[0].strip():
            raise ValueError(f"CHANGELOG.md has no changes under {UNRELEASED.strip()}")
        path.write_text(f"{before}{heading}\n## [{version}] - {day}\n{after}")
    for name, line in FIELDS.items():
        path = root / name
        path.write_text(line.sub(rf"\g<1>{version}\g<3>", path.read_text(), count=1))
    citation = root / "CITATION.cff"
    dated = re.sub(r"^date-released: .*\n", "", citation.read_text(), flags=re.MULTILINE)
    if VERSION.fullmatch(version):
        dated = re.sub(r"^version: .*\n", rf"\g<0>date-released: {day}\n", dated, flags=re.MULTILINE)
    citation.write_text(dated)


def changes(root: Path, version: str) -> str:
    """Return the section of a version in the changelog; empty if it is missing."""
    found = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## \[|\Z)",
        (root / "CHANGELOG.md").read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    return found[1].strip() if found else ""


def problems(root: Path) -> Iterator[str]:
    """Yield why the committed version cannot be released."""
    version = version_of(root)
    if git(root, "status", "--porcelain"):
        yield "the checkout has changes that are not committed: commit or stash them"
    if not VERSION.fullmatch(version):
        yield f"{version} is no version to release: make version VERSION=1.0.0, and commit it"
        return
    cited = FIELDS["CITATION.cff"].search((root / "CITATION.cff").read_text())
    if cited is None or cited[2] != version:
        yield f"CITATION.cff has version {cited and cited[2]}, pyproject.toml {version}"
    if not changes(root, version):
        yield f"CHANGELOG.md has no section [{version}] with a date and changes"
    if git(root, "tag", "--list", f"v{version}") and git(root, "rev-list", "-n1", f"v{version}") != git(
        root, "rev-parse", "HEAD"
    ):
        yield f"the tag v{version} is another commit: choose the next version"


def build(root: Path, out: Path) -> list[Path]:
    """Build sdist and wheel from the committed files, check them, and return their paths.

    A folder with other distributions is an error, since all of them would be published. Raises ValueError.
    """
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: remove it")
    with tempfile.TemporaryDirectory() as sources:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, check=True, capture_output=True)
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(sources, filter="data")
        if url := repository_url(root):
            write_links(Path(sources), url, f"v{version_of(root)}")
        else:
            print("warning: git has no public address of origin, so links of the description stay relative")
        python("-m", "build", "--no-isolation", "--outdir", str(out.resolve()), sources)
    built = sorted(out.iterdir())
    python("-m", "twine", "check", "--strict", *map(str, built))
    return built


def python(*words: str) -> None:
    """Run Python. Raises ValueError with its output if it fails."""
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if ended.returncode:
        raise ValueError(f"python {' '.join(words)} failed:\n{ended.stdout}{ended.stderr}")


def git(root: Path, *words: str) -> str:
    """Return the output of git in a checkout."""
    ended = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def release(root: Path, *, tag: bool) -> None:
    """Check and build the committed version, and tag it. Raises ValueError with all reasons against it."""
    if found := list(problems(root)):
        raise ValueError("; ".join(found))
    for path in build(root, root / "dist"):
        print(f"{path} {path.stat().st_size / 1e6:.2f} MB")
    name = f"v{version_of(root)}"
    if tag:
        message = f"archbench {name}\n\n{changes(root, name[1:])}"
        git(root, "tag", "--annotate", "--cleanup=verbatim", "--message", message, name)
        print(f"tagged {name}; publish it: git push origin {name}")
    else:
        print(f"{name} can be released")


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0, or 2 if the version cannot be released."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", help="the version to write into the project files")
    parser.add_argument("--tag", action="store_true", help="tag the commit")
    options = parser.parse_args(arguments)
    try:
        if options.version:
            write_version(ROOT, options.version, datetime.datetime.now(datetime.UTC).date())
        else:
            release(ROOT, tag=options.tag)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
