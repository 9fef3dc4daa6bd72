"""Documents from a Hugging Face dataset, on the hub or in a local folder in the hub's layout."""

from __future__ import annotations

import functools
import glob
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from archbench.experiments.data.document import Document, text_of_row
from archbench.experiments.runtime.errors import CheckpointError, DataError, is_full


def read_hub(
    dataset: str,
    *,
    config: str | None,
    revision: str | None,
    split: str,
    column: str,
    streaming: bool,
    limit: int | None,
) -> Iterator[Document]:
    """The first ``limit`` rows of a split (all, if None) as documents, in the dataset's order."""
    rows = hub_rows(dataset, config=config, revision=revision, split=split, streaming=streaming, limit=limit)
    for name, location, row in rows:
        yield Document(name, text_of_row(row, column, location))


def hub_rows(
    dataset: str,
    *,
    config: str | None,
    revision: str | None,
    split: str,
    streaming: bool,
    limit: int | None,
) -> Iterator[tuple[str, str, object]]:
    """The first ``limit`` rows of a split (all, if None), in the dataset's order: name, location and row.

    Streaming reads the same rows in the same order without storing the dataset. Classes
    that are indices in the dataset are replaced by their names, or by None where hidden.
    """
    location = place_of(dataset, config, split)
    rows = open_hub(dataset, config=config, revision=revision, split=split, streaming=streaming)
    features = rows.features or {}
    for i, row in enumerate(islice(rows, limit)):
        labelled = {key: _named(value, features.get(key)) for key, value in row.items()}
        yield f"{split}#{i}", f"{location}, row {i}", labelled


def place_of(dataset: str, config: str | None, split: str) -> str:
    """Return a split of a dataset as messages name it."""
    return f"dataset '{dataset}'" + (f", config '{config}'" if config else "") + f", split '{split}'"


def open_hub(dataset: str, *, config: str | None, revision: str | None, split: str, streaming: bool) -> Any:
    """Return a split from the ``datasets`` package: a Dataset, or an IterableDataset where streaming.

    Datasets that need to run code are rejected.

    Raises:
        DataError: there is no such dataset, configuration or split, or it cannot be read.
        CheckpointError: it cannot be stored.
    """
    location = place_of(dataset, config, split)
    import datasets  # imports in almost a second, only for this source

    if not Path(dataset).is_dir():
        _stop_asking_where_unreachable()
    # A folder is read in place; an absolute path keeps a name on the hub from shadowing it.
    name = str(Path(dataset).absolute()) if Path(dataset).is_dir() else dataset
    if Path(name).is_dir() and glob.has_magic(name):
        raise DataError(
            f"{location}: the package datasets would take the brackets, * or ? in {name} for a pattern: "
            "rename the folder, or name its files with task.source=files"
        )
    try:
        available = datasets.get_dataset_split_names(name, config, revision=revision)
        if split not in available:
            raise DataError(
                f"{location}: no such split; there are: {', '.join(available)}. Set task.train_split, "
                "task.validation_split or task.test_split; null carves the last two from train"
            )
        return datasets.load_dataset(name, config, revision=revision, split=split, streaming=streaming)
    except DataError:
        raise
    except OSError as error:
        if is_full(error) or "Not enough disk space" in str(error):
            raise CheckpointError(
                f"{location}: cannot be stored: {error}: make room, or choose another disk with HF_HOME"
            ) from error
        raise _not_found(location, error) from error
    except RuntimeError as error:
        raise DataError(
            f"{location}: cannot be read as plain data files ({error}). Datasets that need their own code "
            "are rejected: use a version converted to Parquet"
        ) from error
    except (datasets.exceptions.DatasetNotFoundError, ValueError) as error:
        raise _not_found(location, error) from error


def data_files(dataset: str, *, config: str | None, revision: str | None, split: str) -> list[str]:
    """Return the addresses of a split's files, each with the dataset's commit where they are on the hub."""
    import datasets

    name = str(Path(dataset).absolute()) if Path(dataset).is_dir() else dataset
    files_of_split = datasets.load_dataset_builder(name, config, revision=revision).config.data_files
    return [str(path) for path in (files_of_split or {}).get(split, [])]


CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection to the hub before it counts as unreachable."""


@functools.cache
def _stop_asking_where_unreachable() -> None:
    """Let the client read only its cache where the hub is unreachable; it would retry for a minute."""
    import datasets
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE or urllib.request.getproxies():
        return  # said already; or a proxy answers
    address = urllib.parse.urlsplit(hub.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        sys.stderr.write(f"note: {address.hostname} cannot be reached ({error}): only its cache is read\n")
        hub.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True


def _not_found(location: str, error: Exception) -> DataError:
    return DataError(
        f"{location}: not found ({type(error).__name__}: {error}). Check the name, the config and the "
        "network; without a network use a local folder or task.source=embedded"
    )


def _named(value: Any, feature: Any) -> Any:
    """A value with class indices replaced by class names; -1 means hidden on the hub."""
    inner = getattr(feature, "feature", None)
    if isinstance(value, list) and inner is not None:
        return [_named(item, inner) for item in value]
    if isinstance(value, int) and hasattr(feature, "int2str"):
        return feature.int2str(value) if value >= 0 else None
    return value
