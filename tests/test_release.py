"""A release is built from the committed files, whose versions must agree."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import ROOT, SOURCE
from tests.release import changes, git, problems, release, version_of, write_version

DAY = datetime.date(2026, 12, 1)
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- **Models.** One more.\n"
PACKAGES = [path.name for path in (SOURCE / "archbench").iterdir() if path.is_symlink()]


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", "A change")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the project files of a development version."""
    for name in ("NAME", "EMAIL"):
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", "a@b.c")
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "LICENSE", "MANIFEST.in", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "remote", "add", "origin", "git@example.org:lab/archbench.git")
    write_version(tmp_path, "0.9.0.dev0", DAY)
    commit(tmp_path)
    return tmp_path


def test_a_development_version_is_not_released(checkout: Path) -> None:
    assert version_of(checkout) == "0.9.0.dev0"
    assert "date-released" not in (checkout / "CITATION.cff").read_text()
    assert (checkout / "CHANGELOG.md").read_text() == CHANGELOG
    (problem,) = problems(checkout)
    assert "0.9.0.dev0 is no version to release" in problem
    with pytest.raises(ValueError, match="is no version to release"):
        release(checkout, tag=True)
    assert git(checkout, "tag") == ""


def test_a_version_is_written_into_all_files(checkout: Path) -> None:
    write_version(checkout, "1.0.0", DAY)
    assert changes(checkout, "1.0.0") == "- **Models.** One more."
    assert "\nversion: 1.0.0\ndate-released: 2026-12-01\n" in (checkout / "CITATION.cff").read_text()
    (problem,) = problems(checkout)
    assert "not committed" in problem
    commit(checkout)
    assert list(problems(checkout)) == []
    with pytest.raises(ValueError, match="no changes under"):
        write_version(checkout, "1.0.1", DAY)
    with pytest.raises(ValueError, match=r"--version 1\.0:"):
        write_version(checkout, "1.0", DAY)
    write_version(checkout, "1.1.0.dev0", DAY)
    assert "date-released" not in (checkout / "CITATION.cff").read_text()


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("CITATION.cff", "version: 1.0.0", "version: 1.0.1", "CITATION.cff has version 1.0.1"),
        ("CHANGELOG.md", "[1.0.0] - 2026-12-01", "[1.0.0]", "CHANGELOG.md has no section"),
        ("CHANGELOG.md", "- **Models.** One more.\n", "", "CHANGELOG.md has no section"),
        ("pyproject.toml", '"1.0.0"', '"1.0.2"', "CITATION.cff has version 1.0.0"),
    ],
)
def test_files_that_disagree_are_named(checkout: Path, file: str, old: str, new: str, reason: str) -> None:
    write_version(checkout, "1.0.0", DAY)
    path = checkout / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    commit(checkout)
    assert any(reason in problem for problem in problems(checkout)), list(problems(checkout))


def test_a_released_version_is_not_released_again(checkout: Path) -> None:
    write_version(checkout, "1.0.0", DAY)
    commit(checkout)
    git(checkout, "tag", "v1.0.0")
    assert list(problems(checkout)) == []
    (checkout / "README.md").write_text("More.\n")
    commit(checkout)
    (problem,) = problems(checkout)
    assert "the tag v1.0.0 is another commit" in problem


@pytest.mark.full
def test_a_release_has_the_committed_files_and_a_tag(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(SOURCE, checkout / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    (checkout / ".gitignore").write_text("dist/\n*.local.yaml\n")
    write_version(checkout, "1.0.0", DAY)
    commit(checkout)
    (checkout / "conf" / "mine.local.yaml").write_text("a: 1\n")  # ignored by git, so not part of a release
    release(checkout, tag=False)
    assert "v1.0.0 can be released" in capsys.readouterr().out
    assert git(checkout, "tag") == ""
    with pytest.raises(ValueError, match="dist is not empty"):
        release(checkout, tag=True)
    wheel, sdist = sorted((checkout / "dist").iterdir(), key=lambda path: path.suffix != ".whl")
    assert (wheel.name, sdist.name) == ("archbench-1.0.0-py3-none-any.whl", "archbench-1.0.0.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert "archbench-1.0.0/src/archbench/conf/config.yaml" in names
    assert not any("mine.local" in name or "/tests/" in name for name in names)
    metadata = zipfile.ZipFile(wheel).read("archbench-1.0.0.dist-info/METADATA").decode()
    assert "Project-URL: Repository, https://example.org/lab/archbench\n" in metadata
    assert "](https://example.org/lab/archbench/raw/v1.0.0/docs/results/" in metadata
    assert not re.search(r"\]\(docs/", metadata)
    shutil.rmtree(checkout / "dist")
    release(checkout, tag=True)
    message = subprocess.run(
        ["git", "for-each-ref", "--format=%(contents)", "refs/tags/v1.0.0"],
        cwd=checkout, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert message.strip() == "archbench v1.0.0\n\n- **Models.** One more."
