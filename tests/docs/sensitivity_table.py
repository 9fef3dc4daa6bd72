"""Text over compute under other conditions: the table of docs/results/sensitivity.md."""

from __future__ import annotations

import math

import pandas as pd

from archbench.analysis.stats.arms import study_setting
from archbench.analysis.stats.compute.multipliers import at_budget, budgets, compute_multipliers, shared_lead
from archbench.analysis.tables import markdown
from archbench.analysis.tables.format import budget, multiplier

CONDITIONS = {
    "laptop": "as in the main comparison",
    "laptop_code": "source code instead of docstrings",
    "laptop_double": "512 tokens per step instead of 256",
    "laptop_muon": "Muon instead of AdamW",
    "laptop_context_64": "64 tokens of context",
    "laptop_context_1024": "1,024 tokens of context",
    "cpu_text": "as in text over compute",
    "cpu_text_half": "512 tokens per step instead of 1,024",
    "cpu_text_twice": "2,048 tokens per step instead of 1,024",
}
"""Study of each condition, in the order of the table."""
MODELS = ["decoder", "decoder_canon", "mamba"]
HEAD = ["condition", "FLOPs", *MODELS, "decoder needs, for the score of Mamba", "part of the convolution"]


def sensitivity_block(runs: pd.DataFrame) -> str:
    """Return a row for each condition and budget.

    Args:
        runs: of the studies of all conditions.
    """
    rows = []
    for study, title in CONDITIONS.items():
        of_study = runs[runs["study"].eq(study) & runs["backbone"].isin(MODELS)]
        curves = {name: budgets(of_study[of_study["backbone"] == name]) for name in MODELS}
        multipliers = compute_multipliers(of_study)
        assert study_setting(of_study, "baseline") == "decoder"
        for rung in curves["decoder"]:
            canon, mamba = (at_budget(curves[name], rung.flops) for name in MODELS[1:])
            assert canon is not None
            assert mamba is not None
            share = shared_lead(canon, mamba, rung)
            assert not math.isnan(share.value)
            cell = "-"
            for row in multipliers.to_dict("records"):
                if row["model"] == "mamba" and budget(row["flops"]) == budget(rung.flops):
                    cell = multiplier(row["multiplier"], row["bound"], row["low"], row["high"]) + " times"
            scores = [f"{found.mean:.3f}" for found in (rung, canon, mamba)]
            part = f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]"
            rows.append([title, budget(rung.flops), *scores, cell, part])
    return "\n".join([*markdown.table(HEAD, rows), ""])
