"""Pictures of reports in Chromium for docs/how-to/report.md: light and dark, on wide and narrow screens."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.analysis.report.browser import picture

COLOURS = 128


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A stretch of a report."""

    source: str
    """The report."""
    scheme: str
    width: int
    """Pixels of the window."""
    top: int = 0
    bottom: int = 900


SHOTS = {
    "light_1440": Shot(source="laptop", scheme="light", width=1440),
    "dark_900": Shot(source="compare", scheme="dark", width=900),
    "light_390": Shot(source="laptop", scheme="light", width=390),
    "dark_1440": Shot(source="later_variants", scheme="dark", width=1440, bottom=1100),
    "light_900": Shot(source="compare", scheme="light", width=900, top=900, bottom=1900),
}
"""By the name of the picture."""


def write_screenshots(reports: dict[str, str], out: Path) -> None:
    """Write the pictures into a folder.

    Args:
        reports: HTML of each source.
        out: the folder.
    """
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, shot in SHOTS.items():
            page, raw = Path(folder) / f"{shot.source}.html", Path(folder) / f"{name}.png"
            page.write_text(reports[shot.source])
            picture(page, raw, shot.scheme, shot.width, shot.bottom)
            with Image.open(raw) as image:
                part = image.convert("RGB").crop((0, shot.top, shot.width, shot.bottom))
            # Not the median cut, which spends its colours on shades of grey and gives models wrong ones.
            few = part.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.save(out / f"{name}.png", optimize=True)
