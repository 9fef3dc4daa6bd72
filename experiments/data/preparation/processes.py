"""The processes that make the parts of a dataset.

Each writes every n-th part to disk, in order, and sends only reports to the process that started it. So the
tasks of an array job on a cluster divide the work in the same way as the processes of one machine.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait

from archbench.experiments.data.preparation.part import PartRecord, Worker, record_of
from archbench.experiments.data.preparation.plan import Part, Preparation
from archbench.experiments.runtime.child_processes import end_with
from archbench.experiments.runtime.console import clock, count
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.runtime.machine import usable_cores

PROGRESS_SECONDS = 5.0
"""Seconds between two lines of progress."""


def make_parts(preparation: Preparation, processes: int, share: tuple[int, int] = (0, 1)) -> Meter:
    """Make the missing parts of a share; return their counts and the throughput.

    Args:
        preparation: that has begun.
        processes: that work concurrently; a single one works in this process.
        share: ``(k, n)`` for the k-th of n shares, of as many tasks.

    Raises:
        RunError: of the first process that fails or is killed. All other processes are stopped; parts that
            are done stay.
    """
    index, of = share
    meter = Meter(sum(1 for i, _ in enumerate(preparation.parts()) if i % of == index))
    if processes == 1:
        for record in _work(preparation, index, of):
            meter.add(record)
        return meter
    with _started(preparation, processes, share) as workers:
        _follow(workers, meter)
    return meter


def _work(preparation: Preparation, rank: int, world: int) -> Iterator[PartRecord | None]:
    """Make every ``world``-th part from ``rank`` on; yield its record, None where none was made."""
    worker: Worker | None = None
    reach = _Reach(preparation)
    for i, part in enumerate(preparation.parts()):
        if i % world != rank:
            continue
        if reach.is_beyond(part) or record_of(preparation.folder, part) is not None:
            yield None
            continue
        worker = worker or Worker(preparation)
        yield worker.write(part)


class _Reach:
    """Tells which parts come after ``max_documents``, by the finished parts before them."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._known: dict[str, tuple[int, int]] = {}
        """For each split, the parts from its beginning on that are known to be done, and their rows."""

    def is_beyond(self, part: Part) -> bool:
        """Return True if the parts before this one have ``max_documents`` rows."""
        limit = self._preparation.corpus.max_documents
        if limit is None:
            return False
        index, rows = self._known.get(part.split, (0, 0))
        while index < part.index and rows < limit:
            previous = Part(split=part.split, index=index, of=part.of)
            if (record := record_of(self._preparation.folder, previous)) is None:
                break
            index, rows = index + 1, rows + record["rows"]
        self._known[part.split] = (index, rows)
        return rows >= limit


@contextmanager
def _started(
    preparation: Preparation, processes: int, share: tuple[int, int]
) -> Iterator[list[tuple[multiprocessing.Process, Connection]]]:
    """Start processes that make the parts of a share; end them with the block."""
    index, of = share
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with Arrow's threads can hang
    threads = os.environ.get("RAYON_NUM_THREADS")
    os.environ["RAYON_NUM_THREADS"] = threads or str(max(1, usable_cores() // processes))
    workers = []
    try:
        for worker in range(processes):
            receiver, sender = spawn.Pipe(duplex=False)
            rank = index + worker * of  # of every process of every task, with one part in turn
            process = spawn.Process(
                target=_main, args=(preparation, rank, processes * of, sender, os.getpid())
            )
            process.start()
            sender.close()
            workers.append((process, receiver))
        yield workers  # type: ignore[misc]
    except BaseException:
        for process, _ in workers:
            process.terminate()
        raise
    finally:
        for process, receiver in workers:
            process.join()
            receiver.close()
        if threads is None:
            del os.environ["RAYON_NUM_THREADS"]


def _main(preparation: Preparation, rank: int, world: int, reports: Connection, parent: int) -> None:
    """Make parts in a child process and report each; the last report is None, or the error."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    with suppress(BrokenPipeError):
        try:
            for record in _work(preparation, rank, world):
                reports.send(("part", record))
            reports.send(("end", None))
        except RunError as error:
            reports.send(("error", error))


def _follow(workers: Sequence[tuple[multiprocessing.Process, Connection]], meter: Meter) -> None:
    """Receive the reports of all processes until all have ended. Raises the first error."""
    running = {receiver: process for process, receiver in workers}
    while running:
        for receiver in wait(list(running)):
            assert isinstance(receiver, Connection)
            try:
                message, value = receiver.recv()
            except EOFError:
                running[receiver].join()
                raise RunError(
                    f"a process was killed (exit code {running[receiver].exitcode}), perhaps for want of "
                    "memory; the parts that are done stay: run the same command again, or use fewer processes"
                ) from None
            if message == "error":
                raise value
            if message == "end":
                del running[receiver]
            else:
                meter.add(value)


class Meter:
    """Counts finished parts, and prints the progress every few seconds, to the error stream."""

    def __init__(self, parts: int) -> None:
        """``parts``: that there are, done or not."""
        self._parts, self._seen, self.made = parts, 0, 0
        self.tokens = self.text_bytes = 0
        self._begun = self._last = time.monotonic()

    def add(self, record: PartRecord | None) -> None:
        """Count a finished part; None for one that existed or is not needed."""
        self._seen += 1
        if record is not None:
            self.made += 1
            self.tokens += record["tokens"]
            self.text_bytes += record["text_bytes"]
        if record is not None and time.monotonic() - self._last >= PROGRESS_SECONDS:
            self._last = time.monotonic()
            remaining = (self._parts - self._seen) * self.seconds / self.made
            print(f"{self}, about {clock(remaining)} left", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._begun

    def __str__(self) -> str:
        """Return the counts and the throughput."""
        megabytes = self.text_bytes / 1e6
        return (
            f"{self._seen} of {self._parts} parts, {self.made} of them now: {megabytes:,.1f} MB of text, "
            f"{count(self.tokens)} tokens, {megabytes / self.seconds:,.2f} MB/s, "
            f"{count(self.tokens / self.seconds)} tokens/s"
        )
