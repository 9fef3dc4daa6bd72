"""Run a track: tune, train what is missing, and write its tables.

    archbench track cpu [workloads=text,parity] [backbones=decoder] [runs=runs] [--dry-run]
    archbench track cpu workloads=parity backbones=decoder,mamba --own-runs
    archbench track cpu add=./my_mixer.py:MyMixer

Each workload is a part: its learning rates are swept on the tuning seeds and chosen on validation; then the
test seeds are trained. The grid of a model is extended until its best rate is inside (with study.fixed_grid,
every model has the same trials; with study.protocol=1.0, the rule is that of the protocol). Runs that ended,
in run folders or in the stored frame of the track, are not trained again: a track can be stopped, resumed,
and continued on another machine, and for an added model only its runs are trained. The rules of each track:
docs/tracks/.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.declared.runs import search, show_plan, train_missing
from archbench.analysis.declared.scored_runs import newest_settings, scored_runs
from archbench.analysis.declared.study_frames import track_frame
from archbench.analysis.declared.tracks import Track, check_backbones, read_track
from archbench.analysis.declared.tuned_study import rates_file
from archbench.analysis.declared.tuning import write_rates
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.files import csv_text, parquet, write
from archbench.analysis.report.page import draw, render_page
from archbench.analysis.stats.targets.target_profiles import to_target
from archbench.analysis.stats.text_slices import slice_table
from archbench.analysis.tables.study_tables import study_tables
from archbench.analysis.track.early import early_decisions
from archbench.analysis.track.overview import overview
from archbench.analysis.track.page import TrackResults, fill_page, track_markdown, verdict_lines
from archbench.analysis.track.results import carried_over, held_out, history, score_table
from archbench.experiments.config import CONF
from archbench.experiments.config.backbone_file import class_paths
from archbench.experiments.config.options import run_command

DOCS = CONF.parent / "docs" / "tracks"
REFERENCE = "decoder"
"""The model whose gains and losses by slice of a text the other models are compared with."""


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """Which track, and which part of it."""

    track: str = ""
    """The track: laptop, cpu, gpu, cluster."""
    workloads: str = ""
    """Workloads, with commas between them; empty for all."""
    backbones: str = ""
    """Models, with commas between them; empty for all."""
    seeds: str = ""
    """Test seeds; empty for all."""
    add: str = ""
    """A backbone that the track does not have, such as ./my_mixer.py:MyMixer: only its runs are trained."""
    runs: str = "runs"
    """The folder of all studies."""
    out: str = ""
    """Where the results go; empty for RUNS/STUDY/analysis."""
    config_dir: str = ""
    """A folder of further YAML files, as Hydra's --config-dir."""
    dry_run: bool = False
    """Print the cost of every run and its state; train nothing."""
    tables: bool = False
    """Choose the learning rates and write the tables from the runs that are there; train nothing."""
    publish: bool = False
    """Write the frame into conf/track/ and the tables into docs/tracks/ of the checkout too."""
    miniature: bool = False
    """Shrink every run to one of seconds, in a study of its own, to try the track out."""
    own_runs: bool = False
    """Also train runs with stored results, and make tables only of the runs in RUNS."""

    def __post_init__(self) -> None:
        if not self.track:
            raise ValueError("name a track: laptop, cpu, gpu or cluster, as in: archbench track cpu")
        if self.publish and (self.miniature or self.dry_run):
            raise ValueError("--publish with --miniature or --dry-run: there is nothing to publish")
        if self.publish and self.own_runs:
            raise ValueError("--publish with --own-runs: the stored results would be lost")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A choice of a track's workloads, models and seeds that one command runs."""

    track: Track
    workloads: list[str]
    backbones: list[str]
    tuning_overrides: list[str]
    """Further overrides of the tuning runs."""
    test_overrides: list[str]
    """Further overrides of the runs with test seeds."""
    runs: Path
    out: Path
    dry_run: bool
    tables: bool
    publish: bool
    miniature: bool


def prepare(config: TrackConfig) -> Part:
    """Return the parts of a track to run. Raises ValueError."""
    track = read_track(config.track, config.config_dir)
    if config.publish and not (DOCS / f"{track.name}.md").exists():
        raise ValueError(f"--publish writes into {DOCS / track.name}.md of a checkout, which is not there")
    workloads = [track.workload(name).name for name in _names(config.workloads)]
    backbones = _names(class_paths(config.add or config.backbones)) or track.backbones
    check_backbones(backbones, config.config_dir)
    overrides = [f"runs={config.runs}"]
    overrides += [f"hydra.searchpath=[file://{Path(config.config_dir).resolve()}]"] * bool(config.config_dir)
    tuning, test = list(overrides), [*overrides, *([f"seed={config.seeds}"] if config.seeds else [])]
    if config.own_runs and not config.miniature:
        track = dataclasses.replace(track, stored=None)
        tuning, test = [*tuning, "study.stored=null"], [*test, "study.stored=null"]
    if config.miniature:
        track = dataclasses.replace(
            track,
            folder=f"{track.folder}_miniature",
            rates_folder=f"{track.rates_folder}_miniature",
            stored=None,
            protocol=None,
            fixed_grid=True,  # a search would never end: models of so few steps have learned nothing
        )
        unsearched = [*track.miniature, "study.stored=null", "study.protocol=null", "study.fixed_grid=true"]
        tuning += [*unsearched, f"study.name={track.rates_folder}"]
        test += [*unsearched, f"study.name={track.folder}"]
    if config.dry_run:
        test.append("study.fixed_grid=true")  # the best rate so far, since the cost does not depend on it
    if track.tuned:
        test.append(f"study.tuned={rates_file(Path(config.runs), track.rates_folder)}")
    return Part(
        track=track,
        workloads=workloads or [workload.name for workload in track.workloads],
        backbones=backbones,
        tuning_overrides=tuning,
        test_overrides=test,
        runs=Path(config.runs),
        out=Path(config.out) if config.out else Path(config.runs) / track.folder / "analysis",
        dry_run=config.dry_run,
        tables=config.tables,
        publish=config.publish,
        miniature=config.miniature,
    )


def run(part: Part) -> None:
    """Run the parts of a track in turn; after each that trained something, write what is known by then."""
    track = part.track
    trained, best = 0, pd.DataFrame()
    for workload in part.workloads:
        print(f"== {track.name}: {workload}", flush=True)
        before = trained
        trained += _tune(part, workload)
        best = write_rates(track, track_frame(track, part.runs), part.runs)
        chosen = best[best["task"] == workload]
        if not chosen.empty and not part.dry_run:
            rates = [
                f"{row.backbone} {row.learning_rate:g}" + (f" ({row.edge} edge)" if row.edge else "")
                for row in chosen.itertuples()
            ]
            print(f"learning rates: {', '.join(rates)}")
        trained += _stage(part, track.study, workload, part.backbones, part.test_overrides)
        if trained > before:
            publish(part, best)
    if part.dry_run:
        return
    if not trained:
        publish(part, best)
        if not part.tables:
            print(f"Nothing was trained: every requested run of the track {track.name} has ended.")


def _tune(part: Part, workload: str) -> int:
    """Train the missing tuning runs of a workload, and return how many there were.

    Unless the grid is fixed, each round of the search trains the next rates of every model. Raises ValueError
    if a search does not end.
    """
    track, overrides = part.track, part.tuning_overrides
    trained = _stage(part, track.rates_study, workload, part.backbones, overrides)
    if track.fixed_grid or part.dry_run or part.tables:
        return trained

    def next_trials() -> list[list[str]]:
        best = write_rates(track, track_frame(track, part.runs), part.runs)
        best = best[(best["task"] == workload) & best["backbone"].isin(part.backbones)]
        searching = best[best["next_rates"].map(bool)]
        by_rates = searching.groupby(searching["next_rates"].map(lambda r: ",".join(f"{x:g}" for x in r)))
        return [
            _words(part, track.rates_study, workload, sorted(models["backbone"]),
                   [*overrides, f"optimizer.learning_rate={rates}"])
            for rates, models in by_rates
        ]  # fmt: skip

    return trained + search(next_trials, f"study={track.rates_study}")


def _stage(part: Part, study: str, workload: str, backbones: Sequence[str], overrides: Sequence[str]) -> int:
    """Train the missing runs of one study of a workload, and return how many there were."""
    words = _words(part, study, workload, backbones, overrides)
    if part.dry_run:
        show_plan(words)
    return 0 if part.dry_run or part.tables else train_missing(words, f"study={study}")


def _words(
    part: Part, study: str, workload: str, backbones: Sequence[str], overrides: Sequence[str]
) -> list[str]:
    """Return the command line of one study of a workload."""
    rules = part.track.workload(workload)
    offline = rules.offline * (part.dry_run or part.miniature)
    more = [*overrides, *offline, *rules.miniature * part.miniature]
    return part.track.words(study, workload, backbones, *more)


def publish(part: Part, best: pd.DataFrame) -> None:
    """Write the frame of the track, its tables and its report. Raises ValueError where no run is known."""
    frame = track_frame(part.track, part.runs)
    if frame.empty:
        raise ValueError(
            f"no run of the track {part.track.name} is in {part.runs}/, and none is kept: "
            f"there is nothing to make tables of; archbench track {part.track.name} trains them"
        )
    runs = scored_runs(part.track, frame)
    runs = runs.assign(path=f"{part.runs}/" + runs["path"])  # for the report: where their folders would be
    name, results = part.track.name, track_results(part.track, runs, best)
    tables = track_markdown(part.track, results)
    beside_page: dict[str, str | bytes] = {}
    if (drawn := overview(part.track, results.arms, results.pairs)) is not None:
        beside_page[f"{name}.svg"] = printed(drawn, "svg")
    beside_page |= {
        f"{name}_{key}.csv": csv_text(getattr(results, key)) for key in ("scores", "pairs", "slices")
    }
    paths = [write(part.out / f"{name}.parquet", parquet(frame))]
    paths += [write(part.out / file, content) for file, content in beside_page.items()]
    paths.append(write(part.out / f"{name}.md", tables))
    if (runs["status"] == "complete").any():
        comparison = Comparison(runs, history(runs))
        html = render_page(comparison, study_tables(comparison), draw(comparison))
        paths.append(write(part.out / f"{name}.html", html))
    if part.publish:
        is_test_run = frame["study"] == part.track.folder
        stored = pd.concat([newest_settings(frame[is_test_run]), frame[~is_test_run]], ignore_index=True)
        path = CONF.parent / (part.track.stored or f"conf/track/{name}.parquet")
        paths.append(write(path, parquet(stored)))
        paths += [write(DOCS / file, content) for file, content in beside_page.items()]
        page = DOCS / f"{name}.md"
        paths.append(write(page, fill_page(page.read_text(encoding="utf-8"), tables)))
    print("\n".join(f"wrote {path}" for path in paths))
    if part.backbones != part.track.backbones:  # all pairs of a track are many
        pairs = results.pairs[results.pairs["task"].isin(part.workloads)]
        print("\n".join(verdict_lines(pairs, part.backbones)), flush=True)


def track_results(track: Track, runs: pd.DataFrame, tuning: pd.DataFrame) -> TrackResults:
    """Return all tables of a track.

    Args:
        runs: from ``analysis.declared.scored_runs.scored_runs``.
        tuning: the chosen learning rates, from ``analysis.declared.tuning.write_rates``.
    """
    comparison = Comparison(runs)
    arms, pairs = comparison.table, comparison.pairs
    reached = to_target(runs, {w.name: w.target for w in track.workloads if w.target is not None})
    return TrackResults(
        runs=runs,
        arms=arms,
        pairs=pairs,
        scores=score_table(arms, held_out(track, runs), reached, tuning),
        reached=reached,
        carried=carried_over(track, runs),
        early=early_decisions(runs, pairs),
        slices=slice_table(runs.assign(baseline=REFERENCE)),
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 2 for a mistake in the arguments."""
    options = list(arguments)
    if options and "=" not in options[0] and not options[0].startswith("-"):
        options[0] = f"track={options[0]}"
    return run_command(__doc__, TrackConfig, options, lambda config: run(prepare(config)), lambda _: None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
