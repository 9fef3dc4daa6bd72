"""Draws speed against length from the rows of ``experiments.benchmark``.

    python -m analysis.speed rows=rows.parquet out=FOLDER [mode=decode] [baseline=decoder]

Tokens per second and milliseconds, both axes logarithmic, a panel for each batch size; one colour for
each backbone, that of the other figures. Writes ``speed_MODE.svg`` and ``speed_MODE.md``. Where a cell was
measured several times, the last one counts.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from analysis.arguments import read_arguments, run_command
from analysis.figures import PALETTE, places
from analysis.writing import write

MODES = ("train", "prefill", "decode")
MARKERS = ("o", "s", "D", "^", "P", "X", "*", "p")
"""Matplotlib's names for ``analysis.figures.SYMBOLS``."""
SETTINGS = ("device", "processor", "threads", "precision", "vocab_size", "torch")
"""What all rows of a figure must have in common."""
S4_CLAIM = (
    "For orientation: Gu et al. 2021 (arXiv 2111.00396, abstract) report generation 60 times as fast as a "
    "transformer's, with far larger models on a GPU."
)


@dataclass(frozen=True, kw_only=True)
class SpeedConfig:
    """What to draw, and where it goes."""

    rows: str = ""
    """Parquet or JSON file of rows."""
    out: str = ""
    """Folder of the figure and the table; empty for that of the rows."""
    mode: str = "decode"
    """``decode``, ``prefill`` or ``train``."""
    baseline: str = "decoder"
    """Backbone that the others are compared with, where it is among them."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("rows= is empty: name what experiments.benchmark wrote, as rows=rows.parquet")
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode} must be one of {', '.join(MODES)}")

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else Path(self.rows).parent


def parse(arguments: Sequence[str]) -> SpeedConfig:
    """The config from ``key=value`` arguments; the first may be the file alone. Raises ValueError."""
    if arguments and "=" not in arguments[0] and not arguments[0].startswith("-"):
        arguments = [f"rows={arguments[0]}", *arguments[1:]]
    return SpeedConfig(**read_arguments(arguments, SpeedConfig))


def load_speed(path: Path, mode: str) -> pd.DataFrame:
    """The complete cells of a mode, one row each, the last where there are several.

    Raises:
        ValueError: there are none, or they were not measured under the same settings.
    """
    if not path.is_file():
        raise ValueError(f"rows={path}: there is no such file; write it with experiments.benchmark output=")
    try:
        if path.suffix == ".json":
            frame = pd.DataFrame(json.loads(path.read_text(encoding="utf-8")))
        else:
            frame = pd.read_parquet(path)
    except (ValueError, OSError) as error:  # what json and pyarrow raise
        raise ValueError(f"rows={path} cannot be read: {str(error).splitlines()[0]}") from None
    if not {"mode", "status", "seconds_median"} <= set(frame):
        raise ValueError(f"rows={path} holds no rows of experiments.benchmark")
    frame = frame[(frame["mode"] == mode) & (frame["status"] == "complete")]
    if frame.empty:
        raise ValueError(
            f"rows={path} has no complete row with mode={mode}: measure it, or name another mode"
        )
    frame = frame.drop_duplicates(["backbone", "context", "batch_size", *SETTINGS], keep="last")
    for setting in SETTINGS:
        found = sorted(frame[setting].unique())
        if len(found) > 1:
            raise ValueError(
                f"rows={path} mixes {setting}: {', '.join(map(str, found))}; keep one file for each"
            )
    return frame.sort_values(["batch_size", "backbone", "context"], ignore_index=True)


def draw(frame: pd.DataFrame) -> Figure:
    """Tokens per second above, milliseconds below, a column for each batch size; bars are quartiles."""
    backbones, batches = sorted(frame["backbone"].unique()), sorted(frame["batch_size"].unique())
    place = places([str(name) for name in backbones])
    figure = Figure(figsize=(1.2 + 4.4 * len(batches), 7.0), facecolor="white", layout="constrained")
    panels = figure.subplots(2, len(batches), sharex=True, sharey="row", squeeze=False)
    for column, batch in enumerate(batches):
        for backbone in backbones:
            rows = frame[(frame["batch_size"] == batch) & (frame["backbone"] == backbone)]
            look = {"color": PALETTE[place[backbone]], "marker": MARKERS[place[backbone]]}
            low, middle, high = (
                1000 * rows[f"seconds_{name}"] for name in ("first_quartile", "median", "third_quartile")
            )
            panels[0][column].plot(rows["context"], rows["tokens_per_second"], label=backbone, **look)
            panels[1][column].errorbar(
                rows["context"], middle, yerr=[middle - low, high - middle], capsize=2, **look
            )
        panels[0][column].set_title("one sequence" if batch == 1 else f"{batch} sequences", fontsize=11)
        panels[1][column].set_xlabel("context, tokens")
        for panel in (panels[0][column], panels[1][column]):
            _axes(panel, sorted(frame["context"].unique()))
    panels[0][0].set_ylabel("tokens per second")
    panels[1][0].set_ylabel(_milliseconds(frame))
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _axes(panel: Any, contexts: list[int]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(contexts, [f"{context:,}" for context in contexts])
    panel.grid(which="both", color="#E4E4E4", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _milliseconds(frame: pd.DataFrame) -> str:
    """What the milliseconds are of."""
    unit = {"decode": "token", "prefill": "prompt", "train": "training step"}
    return f"milliseconds per {unit[frame['mode'].iloc[0]]}"


def render(frame: pd.DataFrame, baseline: str) -> str:
    """Title and table in Markdown; ratios are of tokens per second at the same context and batch."""
    one = frame.iloc[0]
    sizes = ", ".join(
        f"{name} {body:,.0f}" for name, body in frame.groupby("backbone")["parameters_body"].last().items()
    )
    contexts = sorted(frame["context"].unique())
    lines = [
        f"mode={one['mode']}, {one['precision']}, {one['threads']:.0f} threads, {one['processor']}, torch "
        f"{one['torch']}, {str(one['measured_at'])[:10]}, commit {str(one['commit'])[:7]}. "
        f"Body parameters: {sizes}.",
        "",
        f"Medians of {_milliseconds(frame)}; in brackets how many times as fast as {baseline}.",
        "",
        "| backbone | sequences | " + " | ".join(f"{context:,}" for context in contexts) + " |",
        "| --- | --: |" + " --: |" * len(contexts),
    ]
    for (batch, backbone), rows in frame.groupby(["batch_size", "backbone"], sort=True):
        own = rows.set_index("context")["seconds_median"]
        beside = frame[(frame["backbone"] == baseline) & (frame["batch_size"] == batch)]
        base = beside.set_index("context")["seconds_median"]
        shown = [_cell(own.get(c), None if backbone == baseline else base.get(c)) for c in contexts]
        lines.append(f"| {backbone} | {batch} | " + " | ".join(shown) + " |")
    lines += ["", *(f"Warning: {warning}." for warning in mixtures(frame))] * bool(mixtures(frame))
    restless = int((~frame["stable"].astype(bool)).sum())
    if restless:
        lines += ["", f"In {restless} of {len(frame)} cells the times of the warm-up did not stand still."]
    if one["mode"] == "decode":
        lines += ["", S4_CLAIM]
    return "\n".join(lines) + "\n"


def mixtures(frame: pd.DataFrame) -> list[str]:
    """What the rows of a figure do not have in common, though they may."""
    commits = sorted(frame["commit"].dropna().astype(str).str[:7].unique())
    found = [f"mixed commits of the code ({', '.join(commits)})"] * (len(commits) > 1)
    for backbone, rows in frame.groupby("backbone"):
        if rows["kernels"].nunique() > 1:
            found.append(f"mixed kernels of {backbone}: {'; '.join(sorted(rows['kernels'].unique()))}")
    return found


def _cell(seconds: float | None, baseline: float | None) -> str:
    """Milliseconds, and the ratio to the baseline where there is one."""
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.3g}" + ("" if baseline is None else f" ({baseline / seconds:.2f})")


def svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes for the same figure."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "archbench", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def prepare(arguments: Sequence[str]) -> tuple[SpeedConfig, pd.DataFrame]:
    """The rows to draw. Raises ValueError."""
    config = parse(arguments)
    return config, load_speed(Path(config.rows), config.mode)


def publish(config: SpeedConfig, frame: pd.DataFrame) -> None:
    """Prints the table, and writes it and the figure."""
    table = render(frame, config.baseline)
    print(table)
    contents: dict[str, str | bytes] = {"svg": svg(draw(frame)), "md": table}
    for kind, content in contents.items():
        print(f"wrote {write(config.folder / f'speed_{config.mode}.{kind}', content)}")


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 where the person asked for something that is not there."""
    return run_command(__doc__, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
