"""Studies that mislead whoever reads them carelessly: each is flagged in all that is written about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import escape

from archbench.analysis import compare
from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from tests.results import write_result

WriteRun = Callable[..., Path]
Plant = Callable[[Path, WriteRun], object]
"""Changes a clean study; takes its folder and what writes a run."""


def of(study: Path, backbone: str) -> list[Path]:
    """The runs of an arm, by seed."""
    return sorted(study.glob(f"{backbone}-*/s*"))


def again(*seeds: int, **changes: Any) -> Plant:
    """Runs of Mamba are written anew, with changes."""

    def plant(study: Path, write: WriteRun) -> None:
        for seed in seeds:
            shutil.rmtree(of(study, "mamba")[seed])
            write("mamba", seed, 0.9 - seed / 90, task="recall", **changes)

    return plant


def coded(first: dict[str, str], second: dict[str, str]) -> Plant:
    """Mamba was trained by one code under its first two seeds, and by another under its last."""

    def plant(study: Path, write: WriteRun) -> None:
        again(0, 1, code=first)(study, write)
        again(2, code=second)(study, write)

    return plant


def unmatched(axis: str) -> Plant:
    return again(0, 1, 2, matched={"axis": axis, "target": 200000, "residual": 0.0})


def rates(**scores: float) -> Plant:
    """A third arm at several learning rates; less is better on validation."""

    def plant(study: Path, write: WriteRun) -> None:
        for number, (rate, score) in enumerate(scores.items()):
            for seed in range(3):
                folder = write("s4", seed, score, task="recall", digest=str(number))
                (folder / "config.yaml").write_text(
                    f"optimizer:\n  learning_rate: {float(rate[1:]) / 1000}\n"
                )

    return plant


def recorded(seeds: int, **changes: Any) -> Plant:
    """Entries of the results of Mamba are replaced, or where they are groups, extended."""

    def plant(study: Path, write: WriteRun) -> None:
        for run in of(study, "mamba")[:seeds]:
            record = json.loads((run / "result.json").read_text())
            for key, value in changes.items():
                record[key] = record.get(key, {}) | value
            write_result(run, record)

    return plant


def without(*seeds: int, arms: tuple[str, ...] = ("mamba",)) -> Plant:
    return lambda study, write: [shutil.rmtree(of(study, arm)[seed]) for seed in seeds[::-1] for arm in arms]


def other_data(study: Path, write: WriteRun) -> None:
    again(0, fingerprint="data-2")(study, write)
    for seed in range(3):  # a task that is as it should be, as no grid is drawn without one
        write("decoder", seed, 0.5, task="copying")


def other_class(study: Path, write: WriteRun) -> None:
    for seed in range(3):
        write("decoder", seed, 2.4)
        write("diffusion", seed, 2.2, objective="masked_diffusion", likelihood="bound")


def scores(mamba: list[float], decoder: list[float] | None = None) -> Plant:
    """The scores of the runs are replaced, by seed; a third arm is as noisy as the others were."""

    def plant(study: Path, write: WriteRun) -> None:
        for arm, values in (("mamba", mamba), ("decoder", decoder)):
            for run, value in zip(of(study, arm), values or (), strict=False):
                record = json.loads((run / "result.json").read_text())
                record["metrics"][0]["value"] = value
                write_result(run, record)
        for seed in range(3):
            write("s4", seed, 0.6 + seed / 80, task="recall")

    return plant


def unequal_trials(study: Path, write: WriteRun) -> None:
    rates(r1=0.3, r3=0.6, r10=0.5)(study, write)
    for run in (*of(study, "mamba"), *of(study, "decoder")):
        (run / "config.yaml").write_text("optimizer:\n  learning_rate: 0.003\n")


def two_documents(study: Path, write: WriteRun) -> None:
    for run in of(study, "mamba"):
        record = json.loads((run / "result.json").read_text())
        record["metrics"][0]["clusters"] = 2
        write_result(run, record)


def lossy_tokenizer(study: Path, write: WriteRun) -> None:
    for run in of(study, "mamba"):
        record = json.loads((run / "result.json").read_text())
        record["metrics"][0]["lossy_documents"] = 7
        write_result(run, record)


def subset_of_windows(study: Path, write: WriteRun) -> None:
    scored = {"decoder": "whole split", "mamba": "random sample"}
    for arm, words in scored.items():
        for run in of(study, arm):
            record = json.loads((run / "result.json").read_text())
            record["metrics"][0] |= {"scored": words, "items": 256, "available": 4096}
            write_result(run, record)


def other_rules(study: Path, write: WriteRun) -> None:
    for run in of(study, "mamba"):
        record = json.loads((run / "result.json").read_text())
        write_result(run, record | {"rules": "0.9"})


ALL_EXPERTS = "counts all experts: a token uses 59,400 of 137,160 parameters"
"""Fields of a run's record: a mixture of experts brought to a total number of parameters."""


TRAPS: dict[str, tuple[Plant, str]] = {
    "no budget": (again(0, 1, 2, matched=None), "3 of 6 complete runs were matched to no budget"),
    "other budgets": (unmatched("total parameters"), "runs were matched on different axes"),
    "all experts counted": (
        again(0, 1, 2, matched={"axis": "total", "target": 137024, "residual": 0.001, "note": ALL_EXPERTS}),
        f"what is held equal of mamba {ALL_EXPERTS}",
    ),
    "longer training": (
        recorded(3, training={"tokens": 307200, "flops": 7.5e11}),
        "unmatched budgets, the models were trained on 205k to 307k tokens and 500G to 750G FLOPs",
    ),
    "edge of the grid": (
        rates(r1=0.3, r3=0.6, r10=0.8),
        "learning rate of s4 not bracketed, the best (0.01) is at the upper edge of its grid",
    ),
    "chosen on test": (
        rates(r1=0.3, r3=0.8, r10=0.6),
        "s4 stand at several learning rates: to take the best",
    ),
    "one seed": (without(1, 2, arms=("mamba", "decoder")), "one seed: no model is called better"),
    "other data": (other_data, "mixed fingerprints, the runs saw different data"),
    "other code": (
        again(0, commit="deadbeef", code={"experiments": "0"}),
        "mixed commits of the code (c0ffee, deadbeef)",
    ),
    "other code of a model": (
        coded({"experiments": "1", "mine": "2"}, {"experiments": "1", "mine": "3"}),
        "seeds of mamba were trained by different code (mine), not of one model: seeds 0, 1 and seeds 2",
    ),
    "other code of the study": (
        coded({"experiments": "1"}, {"experiments": "2"}),
        "mixed code (experiments): scores and speed are perhaps not comparable",
    ),
    "copied seed": (
        lambda study, write: shutil.copytree(of(study, "mamba")[0], of(study, "mamba")[0].with_name("s7")),
        "it holds the run mamba-causal",
    ),
    "copied curve": (
        lambda study, write: shutil.copy(*(run / "metrics.jsonl" for run in of(study, "mamba")[:2])),
        "seeds 0, 1 of mamba have the same training losses",
    ),
    "folder of another name": (
        lambda study, write: shutil.copytree(
            of(study, "mamba")[0], of(study, "mamba")[0].with_name("s0 (copy)")
        ),
        "left out, as their names are not CELL-DIGEST/sSEED: compare/mamba-causal",
    ),
    "other rules": (other_rules, "runs by rules 0.9, which are not those of this version of archbench (1.0)"),
    "other device": (again(0, processor="q"), "mixed processors (p, q)"),
    "other kernels": (again(0, kernel="eager"), "mixed kernels of attention (eager, sdpa)"),
    "diverged": (
        again(0, status="diverged", message="loss is nan"),
        "mamba is not compared, as runs are missing (seed 0 diverged: loss is nan)",
    ),
    "killed": (again(0, killed=True), "mamba is not compared, as runs are missing (seed 0 incomplete"),
    "dropped": (without(2), "seeds that other models have are missing: mamba 2"),
    "mixed classes": (other_class, "scores of several likelihood types (exact, bound) are not comparable"),
    "below a baseline": (
        scores([0.03, 0.02, 0.025]),
        "not ranked, because a trivial baseline is as good: mamba no better than any value (0.031",
    ),
    "one noisy arm": (
        scores([0.5, 0.9, 0.6]),
        "seeds spread more than 10 times as far as the median model's: mamba",
    ),
    "solved or not": (
        scores([1.0, 0.3, 1.0]),
        "seeds solve the task and others do not: compared by solve counts; with 3 seeds little is decided",
    ),
    "identical scores": (
        scores([0.8, 0.81, 0.82], [0.8, 0.81, 0.82]),
        "the same scores under every seed: decoder, mamba; is one setting without effect?",
    ),
    "a subset of windows": (
        subset_of_windows,
        "over different parts of the split: random sample of 256 of 4096 items and whole split",
    ),
    "two documents": (two_documents, "the standard error over test items rests on 2 documents: not reliable"),
    "lost text": (
        lossy_tokenizer,
        "bits per byte are not comparable with those of other tokenizers: mamba (7)",
    ),
    "unequal trials": (
        unequal_trials,
        "unequal numbers of learning rates tried: decoder 1, mamba 1, s4 3",
    ),
    "inexact resume": (
        recorded(1, resume={"sittings": 2, "exact": False, "changed": {"versions.torch": ["2.9", "2.10"]}}),
        "1 run continued after a change of versions.torch: not exact",
    ),
}


@pytest.fixture
def clean(write_run: WriteRun, tmp_path: Path) -> Path:
    """Two arms, three seeds; one class, data, code, device and budget: nothing to be wary of."""
    for seed in range(3):
        write_run("decoder", seed, 0.8 + seed / 100, task="recall")
        write_run("mamba", seed, 0.9 - seed / 90, task="recall")
    return tmp_path / "runs" / "compare"


def outputs(study: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """All that ``analysis.compare`` prints and writes, by name."""
    out = study.parent / "out"
    assert compare.main(["study=compare", f"runs={study.parent}", f"out={out}"]) == 0
    found = {"printed": " ".join(capsys.readouterr().out.split())}
    kinds = (".csv", ".md", ".tex", ".html")
    found |= {path.name: path.read_text() for path in out.iterdir() if path.suffix in kinds}
    for path in out.glob("*.parquet"):
        [found[path.name]] = pd.read_parquet(path)["warnings"].unique()
    return found


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_flagged_wherever_its_numbers_go(
    name: str, clean: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    plant, words = TRAPS[name]
    plant(clean, write_run)
    for file, text in outputs(clean, capsys).items():
        if file in ("pairs.csv", "slices.csv") and text.count("\n") == 1:
            continue  # no two arms are compared: there is no number to be misled by
        assert words in text or escape(words) in text, file


@pytest.mark.usefixtures("no_page")
def test_a_clean_study_is_flagged_nowhere(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = load_study(clean.parent, "compare")
    assert Comparison(frame).warnings == []
    found = outputs(clean, capsys)
    assert {found[name] for name in found if name.endswith(".parquet")} == {""}
    for name in ("printed", "table.md", "task_grid.md"):
        assert "Warning" not in found[name]
    assert 'class="warnings"' not in found["compare.html"]
    for _, words in TRAPS.values():
        for file, text in found.items():
            assert words not in text, file
            assert escape(words) not in text, file


def test_decoding_is_held_together_within_a_backbone_alone(write_run: WriteRun) -> None:
    """No training depends on it, and not every backbone has a faster path."""

    def decoding(folder: Path, path: str) -> None:
        record = json.loads((folder / "provenance.json").read_text())
        record["kernels"]["decoding"] = path
        (folder / "provenance.json").write_text(json.dumps(record))

    def warnings() -> list[str]:
        return Comparison(load_study(study.parent, study.name)).warnings

    for backbone, path in (("mamba", "native"), ("s4", "portable")):
        for seed in range(3):
            folder = write_run(backbone, seed, 0.9)
            decoding(folder, path)
    study = folder.parents[1]
    assert not any("kernels" in warning for warning in warnings())
    decoding(of(study, "mamba")[0], "portable")
    assert any("mixed kernels of decoding of mamba (native, portable)" in warning for warning in warnings())
