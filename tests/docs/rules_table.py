"""The same runs under the rules of earlier versions and of protocol 1.0: how many verdicts change."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from analysis.stats.comparisons import comparisons, verdict_of
from analysis.tables import markdown

GROUP = ["task", "scale", "likelihood"]
HEAD = ["runs", "seeds", "comparisons", "same", "changed"]


def rules_block(studies: dict[str, pd.DataFrame]) -> str:
    """Return a row for each study."""
    rows = []
    for name, runs in studies.items():
        before, after = (_judged(runs, protocol) for protocol in (None, "1.0"))
        counts: Counter[tuple[str, str]] = Counter()
        for old in before.to_dict("records"):
            of_group = after[after["group"] == old["group"]]
            new = verdict_of(of_group, old["model"], old["other"])
            assert new is not None
            counts[(old["verdict"], new["verdict"])] += 1
        changes = [f"{count} {old} to {new}" for (old, new), count in sorted(counts.items()) if old != new]
        same = sum(count for (old, new), count in counts.items() if old == new)
        seeds = runs["seed"].nunique()
        rows.append([name, str(seeds), str(len(before)), str(same), "; ".join(changes) or "-"])
    return "\n".join([*markdown.table(HEAD, rows), ""])


def _judged(runs: pd.DataFrame, protocol: str | None) -> pd.DataFrame:
    """Return the comparisons under a protocol, with the tests over seeds only: old runs lack other scores."""
    pairs = comparisons(runs.assign(protocol=protocol, documents=None))
    return pairs.assign(group=[" ".join(map(str, key)) for key in pairs[GROUP].itertuples(index=False)])
