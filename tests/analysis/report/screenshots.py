"""Renews the pictures of docs/how-to/report.md: reports in Chromium.

    python tests/analysis/report/screenshots.py study=NAME [runs=runs]

The first screen is that of ``docs/results/compare.parquet``; the figures are those of a study, which needs
curves. Writes ``docs/report/*.png``: light and dark, on a wide screen and on a narrow one. Of each only a
stretch of the page is kept, in 128 colours.
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
    "light_1440": ("frame", "light", 1440, 0, 900),
    "dark_900": ("frame", "dark", 900, 0, 900),
    "light_390": ("frame", "light", 390, 0, 900),
    "dark_1440": ("study", "dark", 1440, 330, 1400),
    "light_900": ("study", "light", 900, 480, 1550),
}
"""Of each picture the report, the scheme, the width of the window, and from where to where, in pixels."""
COLOURS = 128


def main(arguments: list[str]) -> int:
    """The exit code of a report that fails; the pictures where both are written."""
    results = ROOT / "docs" / "results"
    sources = {"frame": [f"frame={results / 'compare.parquet'}"], "study": arguments}
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            speed, out = f"speed={results / 'speed.parquet'}", f"out={Path(folder) / name}"
            if code := compare.main([speed, out, *source]):
                return code
        for name, (source, scheme, width, top, bottom) in SHOTS.items():
            raw, path = Path(folder) / f"{name}.png", ROOT / "docs" / "report" / f"{name}.png"
            picture(Path(folder) / source / "compare.html", raw, scheme, width, bottom)
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
