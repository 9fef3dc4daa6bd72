"""Describe a folder of results frames as a dataset.

    archbench export dataset folder=docs/results

The folder's README.md becomes a dataset card, so that ``datasets.load_dataset(FOLDER, FRAME)`` reads a frame,
and croissant.json describes each frame, its columns and its hash in Croissant 1.0 (mlcommons.org/croissant).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archbench.analysis.files import write
from archbench.experiments.config.options import field_docs, run_command
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.special_files import check_file
from archbench.experiments.tracking.frame_columns import columns

NAME, LICENSE = "archbench-results", "apache-2.0"
DESCRIPTION = (
    "Results of archbench, which compares sequence-model architectures at equal training compute. Each frame "
    "has the runs of a study, a row for each run, failures included."
)
URL = "https://www.apache.org/licenses/LICENSE-2.0"
CITATION = (
    "@software{archbench, author = {{The archbench authors}}, year = {2026}, "
    "title = {archbench: a fair benchmark suite for sequence-model architectures}}"
)
TERMS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes "
    "isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform"
)
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{term: f"cr:{term}" for term in TERMS.split()},
}
"""The JSON-LD context of Croissant 1.0."""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """The folder to describe."""

    folder: str = "docs/results"
    """A folder of Parquet files, a frame each."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A Parquet file of the folder."""

    name: str
    rows: int
    sha256: str
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A folder and its frames by name."""

    folder: Path
    frames: list[Frame]


def read_dataset(config: DatasetConfig) -> Dataset:
    """Return the frames of a folder. Raises DataError."""
    folder = Path(config.folder)
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise DataError(f"folder={config.folder} has no Parquet files: name a folder of frames")
    frames = []
    for path in paths:
        check_file(path)
        try:
            file = pq.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} is not a Parquet file: {error}") from None
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        rows = file.metadata.num_rows
        frames.append(Frame(name=path.stem, rows=rows, sha256=digest, schema=file.schema_arrow))
    return Dataset(folder=folder, frames=frames)


def card(frames: Sequence[Frame]) -> str:
    """Return the dataset card: metadata that ``datasets`` reads, and a page for people."""
    configs = [f"- config_name: {frame.name}\n  data_files: {frame.name}.parquet" for frame in frames]
    rows = [f"| `{frame.name}` | {frame.rows} |" for frame in frames]
    head = ["---", f"pretty_name: {NAME}", f"license: {LICENSE}", "configs:", *configs, "---"]
    read = f'frame = load_dataset("PATH", "{frames[0].name}", split="train").to_pandas()'
    example = ["```python", "from datasets import load_dataset", "", read, "```"]
    return "\n".join(
        [*head, f"# {NAME}", "", DESCRIPTION, "", *example, "", "| frame | rows |", "|---|--:|", *rows, ""]
    )


def croissant(frames: Sequence[Frame]) -> dict[str, Any]:
    """Return Croissant metadata: a file and a record set for each frame."""
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": NAME,
        "description": DESCRIPTION,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "license": URL,
        "citeAs": CITATION,
        "version": importlib.metadata.version("archbench").partition(".dev")[0],
        "distribution": [
            {
                "@type": "cr:FileObject", "@id": f"{frame.name}.parquet", "name": f"{frame.name}.parquet",
                "contentUrl": f"{frame.name}.parquet", "encodingFormat": "application/x-parquet",
                "sha256": frame.sha256,
            }
            for frame in frames
        ],
        "recordSet": [
            {"@type": "cr:RecordSet", "@id": frame.name, "name": frame.name, "field": fields(frame)}
            for frame in frames
        ],
    }  # fmt: skip


def fields(frame: Frame) -> list[dict[str, Any]]:
    """Return the columns of a frame that are not empty, with the description of each that has one."""
    described = []
    for column in frame.schema:
        if pa.types.is_null(column.type):
            continue
        described.append(
            {
                "@type": "cr:Field", "@id": f"{frame.name}/{column.name}", "name": column.name,
                **description(column.name),
                "dataType": data_type(column.type),
                "source": {
                    "fileObject": {"@id": f"{frame.name}.parquet"}, "extract": {"column": column.name},
                },
            }
        )  # fmt: skip
    return described


def description(name: str) -> dict[str, str]:
    """Return the description of a column of the results frame; nothing for a column without one."""
    if (column := columns().get(name)) is None:
        return {}
    text = field_docs(column.model).get(column.field)
    return {"description": text} if text else {}


def data_type(kind: pa.DataType) -> str:
    """Return the type of schema.org for a column."""
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(kind) else "sc:Text"


def publish(dataset: Dataset) -> None:
    """Write the card and the metadata."""
    # One line: otherwise a new frame would be thousands of lines of a diff.
    metadata = json.dumps(croissant(dataset.frames)) + "\n"
    for name, content in (("README.md", card(dataset.frames)), ("croissant.json", metadata)):
        print(f"wrote {write(dataset.folder / name, content)}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 2 for a mistake in the arguments, 3 for a folder that cannot be used."""
    return run_command(__doc__, DatasetConfig, arguments, read_dataset, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
