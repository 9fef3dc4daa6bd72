"""The rows of ``experiments.benchmark``: a file they are appended to, and a table for a console."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from archbench.experiments.cost.tables import size
from archbench.experiments.runtime.atomic_io import unique_name, write_json
from archbench.experiments.runtime.console import count
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.runtime.json_state import read_json
from archbench.experiments.tracking.results_frame import read_frame

SUFFIXES = (".parquet", ".json")
HEADS = (
    "context", "batch", "steps", "passes", "ms, median", "quartiles", "tokens/s", "FLOPs", "share of\nmatmul",
    "bytes/\ntoken", "share of\nmemory", "state", "peak memory", "of it\nthe model's",
)  # fmt: skip
ALWAYS = ("context", "batch", "ms, median", "quartiles", "tokens/s", "share of\nmatmul")
"""Columns that are printed even if they are empty."""

Row = dict[str, Any]


def check_file(path: Path) -> None:
    """Raise ConfigError or DataError if rows cannot be appended to ``path``."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"output={path}: rows are stored in a file that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ConfigError(f"output={path}: there is no folder {path.parent}; make it first")
    read_rows(path)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; none if it does not exist. Raises DataError."""
    if not path.exists():
        return []
    try:
        if path.suffix == ".json":
            rows = read_json(path, list[dict[str, Any]], "name another file", DataError)
        else:
            rows = read_frame(path, ("mode",)).to_pandas().to_dict("records")
    except (ValueError, OSError) as error:  # what json and pyarrow raise
        reason = (str(error).splitlines() or [""])[0]
        raise DataError(f"output={path} cannot be read: {reason}; name another file") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "mode" in row for row in rows):
        raise DataError(f"output={path} has no rows of a benchmark; name another file")
    return rows


def append(path: Path, row: Row) -> None:
    """Append a row. The file is replaced atomically."""
    rows = [*read_rows(path), row]
    if path.suffix == ".json":
        write_json(path, rows)
        return
    temporary = unique_name(path)
    pd.DataFrame(rows).to_parquet(temporary, index=False)
    temporary.replace(path)


def render(rows: list[Row]) -> RenderableType:
    """Return a table of the rows of one backbone for a Rich console, without empty columns."""
    done = [row for row in rows if row["status"] == "complete"]
    cells = [_cells(row) for row in rows]
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("mode", no_wrap=True)
    heads = [head for head in HEADS if head in ALWAYS or any(cell[head] != "-" for cell in cells)]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row, cell in zip(rows, cells, strict=True):
        table.add_row(row["mode"], *(cell[head] for head in heads))
    parts: list[RenderableType] = [Text(heading(done or rows), style="bold"), table]
    if any(row.get("batch_choice") == "largest" for row in done):
        parts.append(Text("max: the largest batch that fits into memory_limit"))
    if not all(row["stable"] for row in done):
        parts.append(Text("* the times of the warm-up were not stable; other work may have disturbed it"))
    return Group(*parts)


def heading(rows: list[Row]) -> str:
    """Describe the model, the machine, and the kernels that ran in any of the rows."""
    row = rows[0]
    if row["status"] != "complete":
        return f"{row['backbone']}: nothing was measured"
    paths: dict[str, dict[str, None]] = {}
    for other_row in rows:
        for part, path in json.loads(other_row["kernels"]).items():
            paths.setdefault(part, {})[path] = None
    kernels = ", ".join(f"{part}: {' or '.join(kernel_paths)}" for part, kernel_paths in paths.items())
    return (
        f"{row['backbone']}: {row['parameters_body']:,} body parameters, vocabulary of {row['vocab_size']:,},"
        f" {row['precision']}, {row['threads']} threads, {row['processor']}, torch {row['torch']}\n"
        f"kernels: {kernels or 'none to choose'}; "
        f"matrix products reach {count(row['matmul_flops_per_second'])}FLOP/s"
    )


def _cells(row: Row) -> dict[str, str]:
    """Return the text of each of ``HEADS``."""
    largest = row.get("batch_choice") == "largest"
    cells = dict.fromkeys(HEADS, "-") | {
        "context": f"{row['context']:,}",
        "batch": f"{row['batch_size']}" + " max" * largest,
    }
    if row["status"] != "complete":
        none = largest and row["status"] == "oom"
        return cells | ({"batch": "none fits"} if none else {}) | {"ms, median": str(row["status"])}
    low, median, high = (
        1000 * row[f"seconds_{name}"] for name in ("first_quartile", "median", "third_quartile")
    )
    return cells | {
        "steps": _shown(row.get("steps"), "{:,}"),
        "passes": _shown(row.get("passes"), "{:,}"),
        "ms, median": f"{median:.4g}" + ("" if row["stable"] else " *"),
        "quartiles": f"{low:.4g} to {high:.4g}",
        "tokens/s": count(row["tokens_per_second"]),
        "FLOPs": count(row["flops"]),
        "share of\nmatmul": _shown(row["matmul_share"], "{:.1%}"),
        "bytes/\ntoken": _size(row.get("bytes_per_token")),
        "share of\nmemory": _shown(row.get("memory_share"), "{:.1%}"),
        "state": _size(row["state_bytes"]),
        "peak memory": size(row["peak_memory_bytes"]),
        "of it\nthe model's": size(row["peak_memory_bytes"] - row["base_memory_bytes"]),
    }


def _shown(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _size(value: float | None) -> str:
    return "-" if value is None else size(value)
