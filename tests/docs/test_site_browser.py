"""Pages of the site in a real browser: nothing wider than the page, readable in dark mode, images there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.analysis.report.browser import CHROMIUM, REMEDY
from tests.analysis.report.mouse import Tab, chromium

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason=REMEDY)]
DOCS = ROOT / "docs"
PAGES = ("findings.md", "tracks/cpu.md", "results/text.md")
PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
WIDE = """[...document.querySelectorAll("article *")]
  .filter(part => part.checkVisibility() && !part.closest(".table-wrapper, svg, pre, .headerlink"))
  .filter(part => part.getBoundingClientRect().right > innerWidth + 1)
  .map(part => `${part.tagName} ${part.className} ${part.textContent.slice(0, 40)}`)"""
CLIPPED = """[...document.querySelectorAll(".table-wrapper")]
  .filter(box => box.getBoundingClientRect().right > innerWidth + 1
    || box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "auto").length"""
CONTRAST = """(() => {
  const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number); return (r + g + b) / 3; };
  const ink = getComputedStyle(document.querySelector("article p")).color;
  return light(getComputedStyle(document.body).backgroundColor) - light(ink);
})()"""


def pictures(page: str) -> list[str]:
    """Return the paths in ``docs/`` of the pictures that a page shows."""
    folder = (DOCS / page).parent
    paths = [(folder / link).resolve() for link in PICTURE.findall((DOCS / page).read_text())]
    return [str(path.relative_to(DOCS)) for path in paths]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as Sphinx makes them, with the theme and the style of ``docs/conf.py``."""
    for name in ("furo", "myst_parser"):
        pytest.importorskip(name, reason=f"needs {name}: make test-browser installs it")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for page in PAGES:
        for name in (page, *pictures(page)):
            (source / name).parent.mkdir(exist_ok=True)
            shutil.copy(DOCS / name, source / name)
    listed = "\n".join(name.removesuffix(".md") for name in PAGES)
    (source / "index.md").write_text(f"# Site\n\n```{{toctree}}\n{listed}\n```\n")
    settings = ["extensions=myst_parser", "html_theme=furo", f"html_static_path={DOCS / '_static'}"]
    words = [part for setting in (*settings, "html_css_files=tables.css") for part in ("-D", setting)]
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-C", "-Q", "-b", "html", *words, str(source), str(out)], check=True
    )
    return out


@pytest.fixture(scope="module")
def tab() -> object:
    with chromium() as opened:
        yield opened


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 900), ("light", 390), ("dark", 390)])
@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_and_are_readable(page: str, scheme: str, width: int, site: Path, tab: Tab) -> None:
    tab.open((site / page).with_suffix(".html"), scheme, width)
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate(WIDE) == []
    assert tab.evaluate(CLIPPED) == 0
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    difference = tab.evaluate(CONTRAST)
    assert difference > 120 if scheme == "light" else difference < -120
