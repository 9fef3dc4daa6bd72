"""Plan of the parts of a dataset, which many processes prepare; a killed one loses only its part.

``CACHE/.KEY.parts/`` holds ``plan.json``, the tokenizer where one is learned, and the parts that are done. A
part is a run of shards of the dataset in its order (``IterableDataset.shard``): a row group of Parquet is a
shard, elsewhere a file. So the order of the documents does not depend on who reads them. Each part is
deterministic: two processes that write the same one do no harm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from archbench.experiments.data.cache_room import work_folder
from archbench.experiments.data.corpus import SPLITS, CorpusConfig, carved_splits, documents
from archbench.experiments.data.hub import data_files, open_hub
from archbench.experiments.data.token_file import planned_folder, publish
from archbench.experiments.data.token_writer import TokenSettings
from archbench.experiments.data.tokenizers.make_tokenizer import load_tokenizer, train_tokenizer
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer, TokenizerConfig
from archbench.experiments.runtime.atomic_io import plain, write_json
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.json_state import read_json

NAME = "plan.json"
MOST_PARTS = 4096
"""Parts of a split at most. More lose less when a process is killed, and are more files."""


class SplitPlan(TypedDict):
    """The division of a split of the dataset."""

    shards: int
    """Of the dataset, as ``datasets`` counts them."""
    parts: int
    files: list[str]
    """The addresses of its files, with the commit of the dataset where they are on the hub."""


class PlanRecord(TypedDict):
    """plan.json."""

    settings: TokenSettings
    splits: dict[str, SplitPlan]
    """By the keys of ``SPLITS``."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a split of the dataset."""

    split: str
    """The split of the dataset, as a key of ``SPLITS``: train, validation or test."""
    index: int
    of: int
    """Parts of the split."""

    @property
    def name(self) -> str:
        """Return its name, that of its files."""
        return f"{self.split}-{self.index:05}-of-{self.of:05}"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A preparation that has begun: everything that a process needs to work on its parts."""

    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    num_sentinels: int
    folder: Path
    """Of the plan and of the parts."""
    destination: Path
    """The prepared folder that comes out."""
    record: PlanRecord

    def parts(self) -> Iterator[Part]:
        """Yield all parts in the order of the documents."""
        for split in SPLITS:
            if split in self.record["splits"]:
                count = self.record["splits"][split]["parts"]  # type: ignore[index]
                yield from (Part(split=split, index=i, of=count) for i in range(count))

    def load_tokenizer(self) -> TextTokenizer:
        """Return the tokenizer, as it was learned."""
        return load_tokenizer(self.tokenizer, self.num_sentinels, self.folder)

    def open_split(self, split: str) -> Any:
        """Return a split of the dataset by the finest shards it has: an IterableDataset.

        Raises:
            DataError: it cannot be read, or has changed since the preparation began.
        """
        shards, plan = _streamed(self.corpus, split), self.record["splits"][split]
        if (files := _files(self.corpus, split)) != plan["files"] or shards.num_shards != plan["shards"]:
            changed = sorted({*files} ^ {*plan["files"]})
            raise DataError(
                f"dataset '{self.corpus.dataset}', split '{split}': is not as it was when {self.folder} was "
                f"begun ({len(plan['files'])} files in {plan['shards']} shards, now {len(files)} in "
                f"{shards.num_shards}{'; ' + changed[0] if changed else ''}): set task.revision to one "
                f"commit, remove {self.folder}, and run again"
            )
        return shards


def begin(
    corpus: CorpusConfig, tokenizer: TokenizerConfig, num_sentinels: int, cache_dir: str | Path
) -> Preparation:
    """Begin the preparation of a dataset, or return one that was begun before.

    A new preparation lists the dataset's files and trains the tokenizer, where it is trained (``kind=bpe``),
    in one process.

    Raises:
        DataError: the dataset cannot be read.
    """
    assert corpus.source == "hub"
    destination, settings = planned_folder(corpus, tokenizer, num_sentinels, cache_dir)
    folder = destination.with_name(f".{destination.name}.parts")
    settings = json.loads(json.dumps(plain(settings)))  # as they are read again
    if not (folder / NAME).exists():
        _write_plan(corpus, tokenizer, num_sentinels, settings, folder)
    remedy = f"remove {folder}, and run again"
    record = read_json(folder / NAME, PlanRecord, remedy, DataError)
    if record is None or record["settings"] != settings:
        raise DataError(f"{folder / NAME}: is of other settings: {remedy}")
    return Preparation(
        corpus=corpus,
        tokenizer=tokenizer,
        num_sentinels=num_sentinels,
        folder=folder,
        destination=destination,
        record=record,
    )


def _write_plan(
    corpus: CorpusConfig,
    tokenizer: TokenizerConfig,
    num_sentinels: int,
    settings: TokenSettings,
    folder: Path,
) -> None:
    """Write the plan. Of concurrent processes, the first one wins; all plans are equal."""
    carved = carved_splits(corpus)
    splits = {}
    for split in SPLITS:
        if split not in carved:
            shards = _streamed(corpus, split).num_shards
            splits[split] = SplitPlan(
                shards=shards, parts=min(shards, MOST_PARTS), files=_files(corpus, split)
            )
    with work_folder(folder) as work:
        texts = (document.text for split, document in documents(corpus) if split == "train")
        train_tokenizer(tokenizer, num_sentinels, texts).save(work)
        write_json(work / NAME, {"settings": settings, "splits": splits})
        publish(work, folder)


def _streamed(corpus: CorpusConfig, split: str) -> Any:
    assert corpus.dataset is not None
    rows = open_hub(
        corpus.dataset,
        config=corpus.dataset_config,
        revision=corpus.revision,
        split=getattr(corpus, f"{split}_split"),
        streaming=True,
    )
    return rows.reshard()  # by row group, where the files are Parquet


def _files(corpus: CorpusConfig, split: str) -> list[str]:
    """Return the addresses of a split's files; of a local folder below that folder."""
    assert corpus.dataset is not None
    paths = data_files(
        corpus.dataset,
        config=corpus.dataset_config,
        revision=corpus.revision,
        split=getattr(corpus, f"{split}_split"),
    )
    return [os.path.relpath(path, corpus.dataset) if os.path.isabs(path) else path for path in paths]
