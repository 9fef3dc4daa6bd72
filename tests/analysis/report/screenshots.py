"""Renews the pictures of docs/how-to/report.md: the report of a study in Chromium.

    python tests/analysis/report/screenshots.py [study=compare] [runs=runs]

Takes the runs of the study and the speeds of ``docs/results/speed.parquet``, and writes
``docs/report/*.png``: light and dark, on a wide screen and on a narrow one. Of each only a stretch of the
page is kept, in 128 colours.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from analysis import compare
from tests import ROOT
from tests.analysis.report.browser import picture

SHOTS = {
    "light_1440": ("light", 1440, 0, 900),
    "dark_900": ("dark", 900, 0, 900),
    "light_390": ("light", 390, 0, 900),
    "dark_1440": ("dark", 1440, 450, 1800),
    "light_900": ("light", 900, 450, 1800),
}
"""Of each picture the scheme, the width of the window, and from where to where of the page, in pixels."""
COLOURS = 128


def main(arguments: list[str]) -> int:
    """The exit code of the report; the pictures where that is 0."""
    with tempfile.TemporaryDirectory() as folder:
        speed = ROOT / "docs" / "results" / "speed.parquet"
        if code := compare.main([f"speed={speed}", f"out={folder}", *arguments]):
            return code
        for name, (scheme, width, top, bottom) in SHOTS.items():
            raw, path = Path(folder) / f"{name}.png", ROOT / "docs" / "report" / f"{name}.png"
            picture(Path(folder) / "compare.html", raw, scheme, width, bottom)
            path.parent.mkdir(exist_ok=True)
            with Image.open(raw) as image:
                part = image.convert("RGB").crop((0, top, width, bottom))
            # Not the median cut, which spends its colours on shades of grey and gives arms wrong ones.
            few = part.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.save(path, optimize=True)
            print(f"wrote {path} ({path.stat().st_size / 1000:.0f} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
