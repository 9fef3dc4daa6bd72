"""Choose each model's learning rate, or other settings, on the validation split of a study that swept them.

    archbench rates study=tune [runs=runs] [--extend]
    archbench rates study=fine_tuning

Where a study sweeps only learning rates, the test split is never looked at. An optimum at the edge of its
grid is flagged: the true one may lie beyond. Prints a table for each task and size, and the command that
extends the grid of a model whose best learning rate is at its edge. Writes RUNS/STUDY/analysis/rates.yaml,
which study=confirm reads.

A study with study.protocol=1.0 has the tuning rule of that protocol: the grid is extended until the best rate
has a worse or diverged one on each side, and then by the neighbours at a quarter of a decade. The table has
the number of trials of each model, and the sensitivity: the increase of the loss at the neighbouring rates.

Where a study sweeps other settings too, prints a table of all points of each backbone's grid, and the test
score of the best one. Test scores of the other settings are not printed: whoever compares them chooses on
the test split.

A rate or point is chosen by its mean over all seeds. Those that lack seeds, or diverged, are not chosen.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml
from rich.table import Table

from archbench.analysis.declared.chosen_rates import decided, write_chosen
from archbench.analysis.load.scale_order import scale_groups, task_label
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.stats.learning_rates.choice import (
    MIN_RATES,
    best_rates,
    extension,
    mixed_settings,
    rate_means,
    rate_table,
    runs_of,
)
from archbench.analysis.stats.learning_rates.settings_grid import GROUP, grid_table
from archbench.analysis.stats.warnings import condition_warnings
from archbench.experiments.config.options import run_command
from archbench.experiments.config.study import typed_command
from archbench.experiments.runtime.console import plain_table, plural, print_tables


@dataclass(frozen=True, kw_only=True)
class RatesConfig:
    """Which study to choose from."""

    study: str = "tune"
    """The study to read, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""
    extend: bool = False
    """Train the next rates, as long as an arm's best rate is at the edge of its grid or not bracketed."""


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A study that swept settings, and what is chosen from it."""

    config: RatesConfig
    warnings: list[str]
    rates: pd.DataFrame
    """From ``analysis.stats.learning_rates.choice.rate_table``."""
    mixed: str
    """Settings that the study varies in addition to learning rates; empty if there are none."""
    grid: pd.DataFrame
    """From ``analysis.stats.learning_rates.settings_grid.grid_table``, where it does."""


def render(rates: pd.DataFrame, best: pd.DataFrame) -> list[Table]:
    """Return one table for each task and scale: arms by learning rates, the chosen one in brackets."""
    tables = []
    for (task, scale), arms in scale_groups(best):
        table_rates = rates[(rates["task"] == task) & (rates["scale"] == scale)]
        grid = sorted(table_rates["learning_rate"].unique())
        by_protocol = ("trials", "sensitivity") if "sensitivity" in arms else ()
        notes = [note(arm) for _, arm in arms.iterrows()]
        heads = [*(f"{rate:g}" for rate in grid), "decades", *by_protocol, *("notes",) * any(notes)]
        table = plain_table("model", *heads, left=("notes",))
        table.title = f"{task_label(task, scale)}: validation by learning rate, best in [ ]"
        for (_, arm), remark in zip(arms.iterrows(), notes, strict=True):
            mean = rate_means(runs_of(arm, rates))
            cells = []
            for rate in grid:  # a dash for a rate that was not tried or diverged
                text = "-" if pd.isna(value := mean.get(rate, math.nan)) else f"{value:.3f}"
                cells.append(f"\\[{text}]" if text != "-" and rate == arm["learning_rate"] else text)
            name = str(arm["backbone"])
            if arms["target"].nunique() > 1:
                name += f" {arm['target']:,.0f}"
            if arms["batch_size"].nunique() > 1:
                name += f", {plural(int(arm['batch_size']), 'sequence')} a step" + " *" * arm["chosen"]
            decades = "-" if pd.isna(arm["decades"]) else f"{'≥ ' * bool(arm['open'])}{arm['decades']:.2f}"
            cells.append(decades)
            if by_protocol:
                cells += [str(arm["rates"]), f"{arm['sensitivity']:.3f}"]
            table.add_row(name, *cells, *(remark,) * any(notes))
        tables.append(table)
    return tables


def note(arm: pd.Series) -> str:
    """Warnings about the runs."""
    if pd.isna(arm["learning_rate"]):
        return "every rate diverged: extend it downwards"
    missing = ", ".join(map(str, arm["missing"]))
    notes = [f"not chosen: seeds that other models have are missing ({missing})"] * bool(missing)
    if "sensitivity" in arm:
        return "; ".join([*notes, *_search_notes(arm)])
    notes += [f"at the {arm['edge']} edge of the grid: extend it"] * bool(arm["edge"])
    undecided = " or ".join(f"{rate:g}" for rate in arm["undecided"])
    notes += [f"undecided: {undecided} may be as good"] * bool(undecided)
    notes += [f"{plural(arm['rates'], 'rate')}: a grid has {MIN_RATES} or more"] * (arm["rates"] < MIN_RATES)
    return "; ".join(notes)


def _search_notes(arm: pd.Series) -> list[str]:
    """Return what an unfinished search still needs, or the side on which it ended without a bracket."""
    if arm["next_rates"]:
        return [f"search not finished: next {', '.join(f'{rate:g}' for rate in arm['next_rates'])}"]
    return [f"not bracketed: the {arm['edge']} end of all rates"] * bool(arm["edge"])


def by_task(best: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The rates by task and backbone, as a YAML with ``study.values.learning_rate`` would have them."""
    rates: dict[str, dict[str, float]] = {}
    for _, arm in decided(best).iterrows():
        rates.setdefault(str(arm["task"]), {})[str(arm["backbone"])] = float(arm["learning_rate"])
    return rates


def extend(config: RatesConfig) -> None:
    """Train the next rates of every arm with its best rate at an edge, until no arm has one.

    Raises ValueError where a command fails, a search does not end in ``MAX_ROUNDS`` rounds, or the study
    varies more than learning rates.
    """
    from archbench.analysis.declared.runs import search  # tables need no PyTorch

    name = f"study={config.study}"

    def next_trials() -> list[list[str]]:
        rates = rate_table(Path(config.runs), config.study)
        if mixed := mixed_settings(rates):
            raise ValueError(f"--extend: {name} varies more than the learning rate: {mixed}")
        best = best_rates(rates)
        return joined([extension(arm, rates) for _, arm in best[best["next_rates"].map(bool)].iterrows()])

    search(next_trials, name)


def joined(commands: list[list[str]]) -> list[list[str]]:
    """Join commands that differ only in variant, or only in backbone, so that their runs fill all cores."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for overrides in commands:
        choices = [override for override in overrides if override.startswith(("variant=", "backbone="))]
        name, _, value = choices[0].partition("=") if len(choices) == 1 else ("", "", "")
        shared = tuple(override for override in overrides if not name or override not in choices)
        groups.setdefault((name, shared), []).append(value)
    return [
        [*shared, f"{name}={','.join(values)}"] if name else [*shared]
        for (name, shared), values in groups.items()
    ]


def prepare(config: RatesConfig) -> Swept:
    """Read a study, after its grid is extended, if configured. Raises ValueError."""
    if config.extend:
        extend(config)
    runs = Path(config.runs)
    rates, frame = rate_table(runs, config.study), load_study(runs, config.study)
    mixed = mixed_settings(rates)
    grid = grid_table(frame, load_history(runs, config.study)) if mixed else pd.DataFrame()
    warnings = condition_warnings(frame)
    return Swept(config=config, warnings=warnings, rates=rates, mixed=mixed, grid=grid)


def publish(swept: Swept) -> None:
    """Print what is chosen; write it where it is a learning rate."""
    print("".join(f"Warning: {warning}.\n" for warning in swept.warnings), end="")
    if swept.mixed:
        publish_grid(swept)
    else:
        publish_rates(swept)


def publish_rates(swept: Swept) -> None:
    """Write the learning rates, and print their tables."""
    config, rates, best = swept.config, swept.rates, best_rates(swept.rates)
    comments = "".join(f"# Warning: {warning}.\n" for warning in swept.warnings)
    path = write_chosen(Path(config.runs), config.study, best, comments)
    print_tables(*render(rates, best))
    print("decades: of learning rate, within 5% of the best result")
    if not best["chosen"].all():
        print("*: the best number of sequences a step")
    if best["undecided"].map(len).any():
        print(
            "undecided: the difference is below its standard error (same items and seeds); "
            "a larger budget decides"
        )
    for _, arm in best[best["next_rates"].map(bool)].iterrows():
        try:
            print(f"extend: {typed_command('train', *extension(arm, rates))}")
        except ValueError as error:
            print(f"extend: {error}")
    if not decided(best).duplicated(["task", "backbone"]).any():
        print("learning_rate:  # by task and backbone, for study.values")
        print(yaml.safe_dump(by_task(best), sort_keys=True))
    print(f"wrote {path}")


def publish_grid(swept: Swept) -> None:
    """Print the points of each grid, the best first."""
    print(f"study={swept.config.study} varies more than the learning rate: {swept.mixed}.")
    print_tables(*render_grid(swept.grid))
    print(
        "Means over seeds, 95% t-intervals. Validation chose, so only the chosen point's test score counts."
    )


def render_grid(grid: pd.DataFrame) -> list[Table]:
    """A table for each group: points by validation, the test score of the chosen one."""
    tables = []
    for key, points in grid.groupby(GROUP, sort=True):
        metric = next((str(name) for name in points["metric"] if name), "no scores yet")
        table = plain_table("settings", "validation", "seeds", "test")
        table.title = f"{', '.join(map(str, key))}: {metric.replace('_', ' ')}"
        for point in points.to_dict("records"):
            lacking = f" ({point['missing']} missing)" if point["missing"] else ""
            table.add_row(
                str(point["arm"]),
                _estimate(point["validation"], point["validation_half"]),
                f"{point['seeds']}{lacking}",
                _estimate(point["test"], point["test_half"]) if point["chosen"] else "",
            )
        tables.append(table)
    return tables


def _estimate(mean: float, half: float | None) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.4f}" if half is None or math.isnan(half) else f"{mean:.4f} ± {half:.4f}"


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 2 for a mistake in the arguments."""
    return run_command(__doc__, RatesConfig, arguments, prepare, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
