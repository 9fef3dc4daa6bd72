"""Renews the pictures of pages and their list, ``docs/pictures.json``: ``make pictures``.

The list has the hashes of the frames that a picture shows, and of its content: a figure as SVG, or a report
as HTML. The tests compare these with the frames and with the code. Only the screenshots need Chromium.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.compare import NO_CURVES, VERDICTS_DPI, stored_frame
from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.capacity import capacity_figures
from archbench.analysis.figures.compute import score_over_compute
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.verdicts import verdict_figure
from archbench.analysis.findings import __main__ as findings
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.speed.__main__ import draw
from archbench.analysis.speed.rows import load_all_modes, load_speed
from archbench.analysis.stats.capacity import rungs
from tests import ROOT
from tests.analysis.pages import page_of
from tests.analysis.report.screenshots import SHOTS, write_screenshots
from tests.docs import renew_tables
from tests.docs.canon_tables import canon_figure
from tests.docs.renew_tables import frame, short_runs, text_runs

DOCS = ROOT / "docs"
LIST = DOCS / "pictures.json"
RESULTS = DOCS / "results"
SUBMISSIONS = DOCS / "submissions"
PLOTLY = re.compile(r'<script type="text/plain" id="plotly">.*?</script>', re.DOTALL)
NOT_LISTED = {
    "reference/pathfinder.png": "examples of a task",
    "results/ladder.svg": "needs the validations of run folders",
    "results/profile.svg": "measured by benchmarks/step_profile.py",
    "tracks/cpu.svg": "written with the tables of the track: archbench track cpu --tables --publish",
}
"""Pictures that this command does not renew, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Sources and content of a picture."""

    frames: tuple[str, ...]
    """Files with the data, relative to ``docs``."""
    content: Callable[[], bytes]
    """The figure as SVG, or the report as HTML without Plotly's script."""


def pictures() -> dict[str, Picture]:
    """Return all pictures that the command renews, by their paths relative to ``docs``."""
    drawn = {
        "results/compare": (renew_tables.SHORT, lambda: _svg(verdict_figure(Comparison(short_runs())))),
        "results/letters": (("letters",), lambda: _svg(verdict_figure(Comparison(frame("letters"))))),
        "results/long_range": (
            ("long_range",),
            lambda: _svg(verdict_figure(Comparison(frame("long_range")))),
        ),
        "results/laptop": (("laptop",), lambda: _over_compute("laptop", "svg")),
        "results/text": (("laptop", "cpu_text"), lambda: _over_compute("text", "svg")),
        "results/text_models": (("cpu_text",), lambda: _svg(verdict_figure(Comparison(of_several_models())))),
        "models/canon": (("canon",), lambda: _svg(canon_figure(frame("canon")))),
        "results/speed_decode": (
            ("speed",),
            lambda: _svg(draw(load_speed(RESULTS / "speed.parquet", "decode"))),
        ),
        "findings/findings": (_frames_of_findings(), _findings),
        **{f"results/capacity_{name}": (("capacity",), _ladder(name)) for name in _ladders()},
    }
    found = {}
    for name, (frames, draw_picture) in drawn.items():
        content = cache(draw_picture)  # of both files
        for kind in ("svg", "png"):
            if (DOCS / f"{name}.{kind}").exists():
                paths = tuple(f"results/{frame}.parquet" for frame in frames)
                found[f"{name}.{kind}"] = Picture(frames=paths, content=content)
    for name, shot in SHOTS.items():
        found[f"report/{name}.png"] = Picture(frames=SOURCES[shot.source][0], content=_html(shot.source))
    return found


def _svg(figure: go.Figure | None) -> bytes:
    assert figure is not None
    return printed(figure, "svg")


def _over_compute(name: str, kind: str) -> bytes:
    """Draw the scores over compute of ``results/laptop`` or ``results/text`` as SVG or PNG."""
    figure = score_over_compute(
        Comparison(frame("laptop") if name == "laptop" else at_several_budgets(text_runs()))
    )
    assert figure is not None
    return printed(figure, kind)


def at_several_budgets(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of models with at least three budgets, which make a curve."""
    return runs[runs.groupby("backbone")["scale"].transform("nunique") >= 3]


def of_several_models() -> pd.DataFrame:
    """Return the runs of ``study=cpu_text`` at the budgets of more than one model."""
    runs = frame("cpu_text")
    return runs[runs.groupby("scale")["backbone"].transform("nunique") > 1]


@cache
def _ladders() -> dict[str, go.Figure]:
    return capacity_figures(rungs(frame("capacity")))


def _ladder(name: str) -> Callable[[], bytes]:
    return lambda: _svg(_ladders()[name])


def _frames_of_findings() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in RESULTS.glob("*.parquet")))


@cache
def _decided() -> tuple[findings.FindingsConfig, findings.Decided]:
    config = findings.FindingsConfig(
        claims=str(DOCS / "findings"),
        published=str(RESULTS / "published"),
        frames=str(RESULTS),
        out=str(DOCS),
    )
    return findings.prepare(config)


def _findings() -> bytes:
    content = findings.contents(_decided()[1])[findings.FIGURE]
    assert isinstance(content, bytes)
    return content


def _stored(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    return stored_frame(RESULTS / f"{name}.parquet"), NO_CURVES


def _submitted() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs of submissions to later_variants, which have learning curves."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "later_variants"
        study.mkdir()
        for cell in sorted(SUBMISSIONS.glob("*/records/later_variants/*")):
            (study / cell.name).symlink_to(cell)
        return load_study(Path(folder), study.name), load_history(Path(folder), study.name)


SOURCES: dict[str, tuple[tuple[str, ...], Callable[[], tuple[pd.DataFrame, pd.DataFrame]]]] = {
    "laptop": (("results/laptop.parquet", "results/speed.parquet"), lambda: _stored("laptop")),
    "compare": (("results/compare.parquet", "results/speed.parquet"), lambda: _stored("compare")),
    "later_variants": (
        tuple(str(path.relative_to(DOCS)) for path in sorted(SUBMISSIONS.glob("*/results.parquet"))),
        _submitted,
    ),
}
"""The reports of the screenshots: files with the data, and the function that returns runs and history."""


@cache
def report(source: str) -> str:
    """Return the report of one of ``SOURCES`` as HTML."""
    runs, history = SOURCES[source][1]()
    speed = None if source == "later_variants" else load_all_modes(RESULTS / "speed.parquet")
    page = page_of(Comparison(runs, history, speed))
    return re.sub(re.escape(tempfile.gettempdir()) + r"/\w+", "runs", page)


def _html(source: str) -> Callable[[], bytes]:
    return lambda: PLOTLY.sub("", report(source)).encode()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def hashes_of_frames(picture: Picture) -> dict[str, str]:
    return {path: digest((DOCS / path).read_bytes()) for path in picture.frames}


def _write_png() -> None:
    """Write the figures that are shown as PNG, too."""
    verdicts = verdict_figure(Comparison(short_runs()))
    assert verdicts is not None
    (RESULTS / "compare.png").write_bytes(printed(verdicts, "png", VERDICTS_DPI))
    for name in ("laptop", "text"):
        (RESULTS / f"{name}.png").write_bytes(_over_compute(name, "png"))


def main() -> int:
    """Write all pictures, the pages that the same commands write, and the list."""
    renew_tables.main()
    for path, content in findings.contents(_decided()[1]).items():
        (DOCS / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    listed = pictures()
    for name in (name for name in listed if name.endswith(".svg")):
        (DOCS / name).write_bytes(listed[name].content())
    _write_png()
    write_screenshots({shot.source: report(shot.source) for shot in SHOTS.values()}, DOCS / "report")
    entries = {
        name: {"content": digest(picture.content()), "frames": hashes_of_frames(picture)}
        for name, picture in sorted(listed.items())
    }
    LIST.write_text(json.dumps(entries, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
