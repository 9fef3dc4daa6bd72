"""Draw speed and memory against length from the rows of ``archbench benchmark``.

    archbench benchmark draw rows=rows.parquet out=FOLDER [mode=decode] [baseline=decoder]

Tokens per second, milliseconds and the peak of memory, all axes logarithmic, a column of panels for each
number of sequences, each number of tokens of a training step and each limit on memory; one colour for each
backbone, that of the other figures. mode=sample is drawn against denoising steps. Writes ``speed_MODE.svg``
and ``speed_MODE.md``. If a cell was measured more than once, the last one counts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.files import write
from archbench.analysis.speed.figure import draw
from archbench.analysis.speed.rows import MODES, load_speed, milliseconds, mixtures
from archbench.analysis.tables.format import si
from archbench.experiments.config.options import run_command


@dataclass(frozen=True, kw_only=True)
class SpeedConfig:
    """The rows to draw, and where the figure goes."""

    rows: str
    """Parquet or JSON file that ``archbench benchmark`` wrote."""
    out: str = ""
    """Folder of the figure and the table; empty for that of the rows."""
    mode: str = "decode"
    """``decode``, ``prefill``, ``train`` or ``sample``."""
    baseline: str = "decoder"
    """Backbone that the remaining ones are compared with, if it was measured."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode} must be one of {', '.join(MODES)}")

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else Path(self.rows).parent


def render(frame: pd.DataFrame, baseline: str) -> str:
    """Title and tables in Markdown; ratios are of tokens per second in the same column and group."""
    one = frame.iloc[0]
    sizes = ", ".join(
        f"{name} {body:,.0f}" for name, body in frame.groupby("backbone")["parameters_body"].last().items()
    )
    lines = [
        f"mode={one['mode']}, {one['precision']}, {one['threads']:.0f} threads, {one['processor']}, torch "
        f"{one['torch']}, {str(one['measured_at'])[:10]}, commit {str(one['commit'])[:7]}. "
        f"Non-embedding parameters: {sizes}."
    ]
    compared = f"; in brackets how many times as fast as {baseline}" * (baseline in set(frame["backbone"]))
    sought = frame["batch_choice"] == "largest"
    if one["mode"] == "sample":
        lines += ["", f"Committed tokens per second and forward passes{compared}. Columns: denoising steps."]
        lines += ["", *_table(frame, "steps", baseline)]
    elif not sought.all():
        lines += ["", f"Medians of {milliseconds(one['mode'])}{compared}."]
        lines += ["", *_table(frame[~sought], "context", baseline)]
    if sought.any():
        lines += ["", f"The largest batch that fits, and its tokens per second{compared}."]
        lines += ["", *_table(frame[sought], "context", baseline)]
    lines += ["", *(f"Warning: {warning}." for warning in mixtures(frame))] * bool(mixtures(frame))
    restless = int((~frame["stable"].astype(bool)).sum())
    if restless:
        lines += ["", f"In {restless} of {len(frame)} configurations the warm-up times had not settled."]
    return "\n".join(lines) + "\n"


def _table(frame: pd.DataFrame, across: str, baseline: str) -> list[str]:
    """A row for each group and backbone, a column for each context or number of steps."""
    columns = sorted(int(value) for value in frame[across].unique())
    lengths = ["context"] if across == "steps" else []
    heads = ["backbone", "sequences", *["tokens"] * len(lengths)]
    rules = ["---", *["--:"] * (len(heads) - 1 + len(columns))]
    lines = [_line([*heads, *(f"{value:,}" for value in columns)]), _line(rules)]
    for key, rows in frame.groupby(["order", "group", *lengths], sort=True):
        by = rows.set_index(["backbone", across])
        for backbone in sorted(rows["backbone"].unique()):
            cells = []
            for value in columns:
                row, base = (
                    by.loc[(b, value)] if (b, value) in by.index else None for b in (backbone, baseline)
                )
                cells.append(_cell(row, None if backbone == baseline else base))
            row = rows.iloc[0]
            has_batch_size = row["batch_choice"] == "given" and pd.isna(row["tokens_per_step"])
            sequences = str(row["batch_size"] if has_batch_size else row["group"])
            lines.append(_line([backbone, sequences, *(f"{length:,}" for length in key[2:]), *cells]))
    return lines


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(row: pd.Series | None, baseline: pd.Series | None) -> str:
    """Return what was measured, and the ratio to the baseline where there is one."""
    if row is None:
        return "-"
    if row["mode"] == "sample":
        text = f"{si(row['tokens_per_second'])}, {row['passes']:,.0f} passes"
    elif row["batch_choice"] == "largest":
        text = f"{row['batch_size']:,}: {si(row['tokens_per_second'])}"
    else:
        text = f"{1000 * row['seconds_median']:.3g}"
    return text + (
        "" if baseline is None else f" ({row['tokens_per_second'] / baseline['tokens_per_second']:.2f})"
    )


def prepare(config: SpeedConfig) -> tuple[SpeedConfig, pd.DataFrame]:
    """The rows to draw. Raises ValueError."""
    return config, load_speed(Path(config.rows), config.mode)


def publish(config: SpeedConfig, frame: pd.DataFrame) -> None:
    """Print the table, and write it and the figure."""
    table = render(frame, config.baseline)
    print(table)
    contents: dict[str, str | bytes] = {"svg": printed(draw(frame), "svg"), "md": table}
    for kind, content in contents.items():
        print(f"wrote {write(config.folder / f'speed_{config.mode}.{kind}', content)}")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 2 for a mistake in the arguments."""
    return run_command(__doc__, SpeedConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
