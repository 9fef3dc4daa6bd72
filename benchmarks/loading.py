"""Times loading a study of many runs in the analysis.

python benchmarks/loading.py --runs 10000 --output benchmarks/results/loading.md

The runs are synthetic, in the file formats of the harness: configurations are composed by Hydra and
written by its RunFolder once for each backbone, then copied with another learning rate and seed; records
have as many keys, and metrics.jsonl as many rows, as a run of study=compare. There is no training.

Cold: no cache, every folder is read, and the cache is written. Warm: no folder has changed. One in a hundred:
every hundredth run has a new row. The page cache of the system is warm throughout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from machine import Page, as_markdown, machine_line
from overhead import compose

from archbench.analysis.load.cache import NAME
from archbench.analysis.load.study import load_history, load_study
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.tasks.metrics import Metric, Reference
from archbench.experiments.tracking.provenance import provenance
from archbench.experiments.tracking.run_files import (
    DataSource,
    MatchedSize,
    ParameterCounts,
    Resume,
    RunResult,
    TrainingSummary,
)
from archbench.experiments.tracking.run_folder import RunFolder

STUDY = "many"
BACKBONES = ("decoder", "mamba", "s4", "moe")
SEEDS = 50
LOGGED, VALIDATED = 60, 10
"""Rows of a run of each type."""
RATE, SEED, KEY = 0.123456789, 987654321, "KEY-OF-THE-RUN"
"""Written into the templates, to be replaced."""
OLD = 10**9
"""A time of change, in seconds: files of a study that has ended are not of this second."""


def templates(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Backbone, configuration and provenance of a run of each."""
    for backbone in BACKBONES:
        overrides = (f"backbone={backbone}", f"optimizer.learning_rate={RATE}", f"seed={SEED}")
        settings = compose(*overrides, f"study.name={STUDY}", "task.sequence_length=64")
        run = RunFolder(folder / backbone)
        data = DataSource(task="text", fingerprint="63a796f6cc750927")
        kernels = {"attention": "sdpa"}
        run.open(settings.resolved, provenance(KEY, torch.device("cpu"), "fp32", data, kernels))
        yield (
            backbone,
            (run.root / "config.yaml").read_text(),
            (run.root / "provenance.json").read_text(),
        )


def write_study(root: Path, runs: int) -> None:
    """A study of complete runs: ``SEEDS`` seeds of each backbone at as many learning rates as needed."""
    with tempfile.TemporaryDirectory() as folder:
        run_templates = list(templates(Path(folder)))
    with mock.patch("os.fsync"):  # waiting for the disk would take minutes, and the files are temporary
        write_runs(root, runs, run_templates)


def write_runs(root: Path, runs: int, run_templates: list[tuple[str, str, str]]) -> None:
    """Write runs that differ from their templates in learning rate, seed and metrics."""
    for index in range(runs):
        point, seed = divmod(index, SEEDS)
        rate, (backbone, config, record) = 0.001 + point * 1e-5, run_templates[point % len(run_templates)]
        cell = f"{backbone}-text-nano"
        run = root / f"{cell}-{point:08x}" / f"s{seed}"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(
            config.replace(str(RATE), f"{rate:.5f}").replace(str(SEED), str(seed))
        )
        folder = RunFolder(run)
        (run / "provenance.json").write_text(record.replace(KEY, folder.key))
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(index)))
        folder.finish(result(backbone, cell, f"{point:08x}", seed))
        for path in run.iterdir():
            os.utime(path, (OLD, OLD))


def result(backbone: str, cell: str, digest: str, seed: int) -> RunResult:
    """Return the result of a run that ended."""
    metric = Metric(
        name="bits_per_byte", split="test", value=2.2 + seed / 1000, unit="bits/byte", direction="lower",
        averaging="micro: over bytes", likelihood="exact", estimator="chain rule", samples=1,
        standard_error=0.0123456789, items=1024, cluster_totals=[[4321.123456789, 2048.0]] * 100,
    )  # fmt: skip
    training = TrainingSummary(
        steps=1171, tokens=1199104, flops=9.11e11, epochs=1.3, seconds=24.6 + seed,
        device_seconds=24.6 + seed, tokens_per_second=48700.1234, compile_seconds=0.0, data_share=0.0123,
        peak_memory_bytes=422576128, micro_batch_size=32, loss_spikes=0, skipped_steps=0,
    )  # fmt: skip
    return RunResult(
        format=1, key=f"{cell}-{digest}-s{seed}", study=STUDY, cell=cell, digest=digest, seed=seed,
        backbone=backbone, objective="causal_lm", task="text", scale="nano",
        parameters=ParameterCounts(embedding=16384, body=100300, head=16384, total=137000, active=137000),
        flops_per_token=760000.0, state_bytes_2k=1048576,
        matched=MatchedSize(axis="flops", target=760000, value=760100, residual=0.003, note=None),
        fingerprint="63a796f6cc750927", resume=Resume(sittings=1, exact=True, changed={}),
        validation=[replace(metric, split="validation")],
        references=[Reference(name="xz", metric="bits_per_byte", value=1.963, note="level 9")],
        status=RunStatus.COMPLETE, message=None, training=training, metrics=[metric],
        finished_at="2026-11-22T05:30:00+00:00",
    )  # fmt: skip


def rows(run: int) -> Iterator[dict[str, Any]]:
    """Rows of metrics.jsonl, with values of full precision."""
    noise = random.Random(run).random
    for index in range(1, LOGGED + 1):
        step = 20 * index
        common = {"step": step, "tokens": step * 1024, "flops": step * 7.7824e8, "seconds": step * noise()}
        yield {
            "kind": "train", **common, "loss": noise(), "learning_rate": 0.01 / index, "grad_norm": noise(),
            "tokens_per_second": 48700 * noise(), "data_share": noise(),
        }  # fmt: skip
        if index % (LOGGED // VALIDATED) == 0:
            yield {"kind": "validation", **common, "bits_per_byte": noise(), "nats": noise()}


def seconds(load: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of the processor."""
    begin = time.perf_counter(), time.process_time()
    load()
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


def measure(runs: Path, repeats: int) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Seconds of each load, by its state and what is loaded. Both take turns."""
    root, times = runs / STUDY, {}
    loads = {"load_study": load_study, "load_history": load_history}
    states: dict[str, Callable[[], None]] = {
        "cold": lambda: (root / NAME).unlink(missing_ok=True),
        "warm": lambda: None,
        "one in a hundred changed": lambda: touch(root),
    }
    for _ in range(repeats):
        for state, prepare in states.items():
            for name, load in loads.items():
                prepare()
                times.setdefault((state, name), []).append(seconds(lambda load=load: load(runs, STUDY)))
    return times


def touch(root: Path) -> None:
    """Adds a row to every hundredth run."""
    for path in sorted(root.glob("*/*/metrics.jsonl"))[::100]:
        with path.open("a") as file:
            file.write(json.dumps({"kind": "train", "step": 10**6, "loss": 1.0}) + "\n")
        os.utime(path, (OLD + time.time_ns() % 10**6, OLD))


def main() -> None:
    args = parse()
    page = Page(args.output)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        runs = Path(folder)
        write_study(runs / STUDY, args.runs)
        times_of = measure(runs, args.repeats)
        size = (runs / STUDY / NAME).stat().st_size
    page.say(f"{machine_line()}, load average {os.getloadavg()[0]:.1f}.")
    page.say(
        f"{args.runs:,} runs, {args.runs // SEEDS} arms, {LOGGED + VALIDATED} rows of metrics each; a cache "
        f"of {size / 2**20:.0f} MiB. Seconds, {args.repeats} times each."
    )
    lines = [
        [state, name, *(spread(clock_times) for clock_times in zip(*times, strict=True))]
        for (state, name), times in times_of.items()
    ]
    page.say(as_markdown(("folders", "loaded", "by the clock", "of the processor"), lines))


def spread(times: Sequence[float]) -> str:
    """The median and, in brackets, the least and the most."""
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10000, help=f"a multiple of {SEEDS}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the runs are written; default the system's")
    parser.add_argument("--output", type=Path, help="Markdown file to write the table to")
    args = parser.parse_args()
    if args.runs < SEEDS or args.runs % SEEDS:
        parser.error(f"--runs {args.runs}: a multiple of {SEEDS}")
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: at least 1")
    if args.output is not None and not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: there is no folder {args.output.parent}; make it first")
    return args


if __name__ == "__main__":
    main()
