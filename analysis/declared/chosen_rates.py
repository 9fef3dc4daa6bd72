"""The file of the learning rates that a tuning study chooses, which the runs with test seeds read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import yaml

from archbench.analysis.declared.tuned_study import rates_file
from archbench.analysis.files import write
from archbench.analysis.stats.learning_rates.choice import MODEL


def write_chosen(runs: Path, study: str, best: pd.DataFrame, comments: str = "") -> Path:
    """Write the rates that were chosen, and return the path of the file.

    Args:
        runs: the folder of all studies.
        study: name of the tuning study.
        best: from ``analysis.stats.learning_rates.choice.best_rates``.
        comments: lines at the beginning of the file.
    """
    path = rates_file(runs, study)
    write(path, comments + yaml.safe_dump(_chosen(study, best), sort_keys=False))
    return path


def _chosen(study: str, best: pd.DataFrame) -> dict[str, object]:
    """Return the content of rates.yaml: the study, its seeds, and what was chosen for each arm."""
    arms = []
    batch_sizes = best.groupby(MODEL, dropna=False)["batch_size"].transform("nunique")
    for _, arm in decided(best.assign(batch_sizes=batch_sizes)).iterrows():
        arms.append(
            {
                **{key: str(arm[key]) for key in MODEL if key != "target"},
                "target": None if pd.isna(arm["target"]) else float(arm["target"]),
                "learning_rate": float(arm["learning_rate"]),
                "batch_size": int(arm["batch_size"]) if arm["batch_sizes"] > 1 else None,
                "bracketed": not arm["edge"] and not arm["next_rates"],
                "undecided": arm["undecided"],
                "metric": arm["metric"],
                "validation": float(arm["validation"]),
                "decades": round(float(arm["decades"]), 3),
            }
            | ({"tuning": _tuning(arm)} if "sensitivity" in arm else {})
        )
    return {"study": study, "seeds": sorted({s for seeds in best["seeds"] for s in seeds}), "arms": arms}


def _tuning(arm: pd.Series) -> dict[str, object]:
    """Return what ``experiments.config.study.TuningConfig`` holds of a search by the protocol."""
    return {
        "validation": float(arm["validation"]), "second_validation": float(arm["second_validation"]),
        "trials": int(arm["trials"]), "sensitivity": float(arm["sensitivity"]),
    }  # fmt: skip


def decided(best: pd.DataFrame) -> pd.DataFrame:
    """Return the arms for which a rate is chosen: some rate did not diverge, and no seed is missing."""
    return best[best["chosen"] & best["learning_rate"].notna() & ~best["missing"].astype(bool)]
