"""The report under a real mouse: values on hover, and a click on the legend."""

from pathlib import Path

import pytest

from tests.analysis.report.browser import CHROMIUM, REMEDY
from tests.analysis.report.mouse import chromium
from tests.analysis.report.test_browser import written

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason=REMEDY)]

FIGURE = "document.querySelector('#curves [data-curve]:not([hidden]) .figure')"
POINT = f"""(path => {{
  const end = path.getPointAtLength(0).matrixTransform(path.getScreenCTM());
  return [end.x + 3, end.y];
}})({FIGURE}.querySelector('.scatterlayer .lines path'))"""
"""Place in the window of the first point of the first line."""
NAME = f"{FIGURE}.querySelector('.legendtext').dataset.unformatted"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 900), ("light", 390)])
def test_hover_shows_values_and_a_click_hides_a_model(
    scheme: str, width: int, study: Path, tmp_path: Path
) -> None:
    page = written(study, tmp_path)
    with chromium() as tab:
        tab.open(page, scheme, width)
        tab.wait("document.body.dataset.ready === 'yes'")
        assert tab.evaluate("innerWidth") == width
        tab.evaluate(f"{FIGURE}.scrollIntoView({{block: 'center'}})")
        tab.wait(
            f"{FIGURE}.querySelector('.legendtoggle') && {FIGURE}.querySelector('.scatterlayer .lines path')"
        )
        tab.move_to(*tab.evaluate(POINT))
        tab.wait(f"{FIGURE}.querySelector('.hoverlayer .hovertext')")
        text = tab.evaluate(f"{FIGURE}.querySelector('.hoverlayer .hovertext').textContent")
        models = tab.evaluate("[...document.querySelectorAll('.arms input')].map(each => each.value)")
        assert any(model in text for model in models), text
        assert any(letter.isdigit() for letter in text), text
        name = tab.evaluate(NAME)
        switch = f"[...document.querySelectorAll('.arms input')].find(each => each.value === {name!r})"
        shown = f"{FIGURE}.data.some(trace => trace.name === {name!r} && trace.visible === true)"
        assert tab.evaluate(f"{switch}.checked && {shown}")
        tab.click(f"{FIGURE}.querySelector('.legendtoggle')")
        tab.wait(f"!{switch}.checked && !{shown}")
