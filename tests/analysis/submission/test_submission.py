"""A submission by the rules is accepted, and each of many ways to cheat is rejected with the reason."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from analysis.files import parquet
from analysis.submission import study as study_module
from analysis.submission import submit
from analysis.submission.folder import Submission, config_problems, model_configs
from analysis.submission.records import repeated_problems
from analysis.submission.study import StudyRules, expected_runs, read_study, sections_set, trial_problems
from analysis.submission.validate import ValidateConfig, main, reasons
from analysis.track.frame import study_frame
from analysis.track.runs import listed
from experiments.config.study import RULES
from experiments.runtime.errors import ConfigError
from experiments.tracking import provenance
from experiments.tracking.run_files import checksum, file_record
from tests.experiments import commands
from tests.experiments.test_toy_backbone import PYTHON

STUDY = """# @package _global_
defaults:
  - override /device: cpu
  - override /budget: smoke

study:
  name: toy
  tuned: ${runs}/toy_rates/analysis/rates.yaml
  fixed_grid: true
scale: {depth: 1, mixer_depth: 1, axis: non_embedding, targets: {non_embedding: 20_000}}
device: {threads: 1}
trainer: {validation_examples: 8, test_examples: 8, evaluate_every: 10}

hydra:
  mode: MULTIRUN
  sweeper:
    params:
      task: text,recall
      backbone: decoder
      seed: 0,1
"""
RATES = """# @package _global_
defaults:
  - toy
  - _self_

study:
  name: toy_rates
  tuned: null
trainer: {test_examples: 2}

hydra:
  sweeper:
    params:
      optimizer.learning_rate: 1e-3,1e-2
      seed: 100
"""
EXAMPLES = commands.ROOT / "docs" / "submissions"
MODEL = ("backbone=my_toy.Toy", "task=text")
Edit = Callable[[Path], None]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study, a model in a file, its runs by the rules and their submission.

    The folder ``other`` has one trial more, and a test run with the rate of another trial.
    """
    desk = tmp_path_factory.mktemp("desk")
    for name, text in {"toy.yaml": STUDY, "toy_rates.yaml": RATES}.items():
        (desk / "conf" / "study").mkdir(parents=True, exist_ok=True)
        (desk / "conf" / "study" / name).write_text(text)
    (desk / "my_toy.py").write_text(PYTHON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{desk}:{commands.ROOT}")
        patch.setattr(sys, "path", [str(desk), *sys.path])
        forget_module()
        words = (f"hydra.searchpath=[file://{desk}/conf]", *MODEL)
        other = ("study=toy_rates", "optimizer.learning_rate=3e-3", "seed=100", f"runs={desk}/other")
        commands.train(*words, *other)
        chosen = train_by_rules(desk, MODEL)
        best = yaml.safe_load((chosen / "config.yaml").read_text())["optimizer"]["learning_rate"]
        rate = 0.001 if best == 0.01 else 0.01
        untuned = ("study.tuned=null", f"optimizer.learning_rate={rate}", "seed=0", f"runs={desk}/other")
        commands.train(*words, "study=toy", *untuned)
        arguments = ["study=toy", *MODEL, "authors=A. Author", f"runs={desk}/runs", f"config_dir={desk}/conf"]
        assert submit.main([*arguments, f"out={desk}/submission"]) == 0
    return desk


def train_by_rules(desk: Path, model: Sequence[str]) -> Path:
    """Train the runs that the study asks of a model, and return the last one."""
    words = (f"hydra.searchpath=[file://{desk}/conf]", *model, f"runs={desk}/runs")
    for rate in ("1e-3", "1e-2"):
        commands.train(*words, "study=toy_rates", f"optimizer.learning_rate={rate}", "seed=100")
    # Writes the learning rates.
    expected_runs(read_study("toy", f"{desk}/conf"), model, desk / "runs", desk / "runs")
    for seed in (0, 1):
        run = commands.train(*words, "study=toy", f"seed={seed}")
    return run


def forget_module() -> None:
    """Make the next import of the model that of another folder."""
    sys.modules.pop("my_toy", None)
    importlib.invalidate_caches()
    provenance._hash.cache_clear()


LISTED: dict[tuple[str, ...], pd.DataFrame] = {}


def listed_once(words: list[str]) -> pd.DataFrame:
    """``listed``, whose subprocess runs once for equal overrides and learning rates."""
    key = tuple(
        Path(word.partition("=")[2]).read_text() if word.startswith("study.tuned=") else word
        for word in words
        if not word.startswith("runs=")
    )
    if key not in LISTED:
        LISTED[key] = listed(words)
    return LISTED[key]


@pytest.fixture
def folder(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the submission, to be edited."""
    monkeypatch.setenv("PYTHONPATH", str(commands.ROOT))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(study_module, "listed", listed_once)
    forget_module()
    shutil.copytree(desk / "other", tmp_path / "other")
    return Path(shutil.copytree(desk / "submission", tmp_path / "submission"))


def run_in(folder: Path, seed: int) -> Path:
    """The run of a seed; 100 for a tuning run."""
    return sorted((folder / "records").glob(f"*/*/s{seed}"))[0]


def sealed(path: Path, edit: Callable[[dict[str, Any]], object] = lambda result: None) -> None:
    """Change a result as somebody does who knows its hashes."""
    result = json.loads((path / "result.json").read_text())
    edit(result)
    for name in result["files"]:
        result["files"][name] = file_record((path / name).read_bytes()).model_dump()
    result["checksum"] = checksum(result)
    (path / "result.json").write_text(json.dumps(result))


def sealed_frame(folder: Path) -> None:
    """Write results.parquet again, as somebody does who has edited the runs."""
    (folder / "results.parquet").write_bytes(parquet(study_frame(folder / "records", "toy")))


def result_edit(edit: Callable[[dict[str, Any]], object]) -> Edit:
    """The result of seed 0 was changed, with its hashes and with results.parquet."""

    def change(folder: Path) -> None:
        sealed(run_in(folder, 0), edit)
        sealed_frame(folder)

    return change


def setting_edit(key: str, value: object) -> Edit:
    """The run of seed 0 had another value of a setting."""

    def change(folder: Path) -> None:
        path = run_in(folder, 0) / "config.yaml"
        config = yaml.safe_load(path.read_text())
        section, name = key.split(".")
        assert config[section][name] != value
        config[section][name] = value
        path.write_text(yaml.safe_dump(config))
        sealed(path.parent)

    return change


def code_edit(old: str, new: str, runs: bool) -> Edit:
    """The code of the model is another one; with ``runs``, also that which the runs have recorded."""

    def change(folder: Path) -> None:
        file = folder / "my_toy.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))
        for path in (folder / "records").glob("*/*/s*/provenance.json") if runs else ():
            record = json.loads(path.read_text())
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(folder)
                forget_module()
                record["code"]["my_toy"] = provenance.code_hashes(["my_toy"])["my_toy"]
            path.write_text(json.dumps(record))
            sealed(path.parent)
        sealed_frame(folder)

    return change


def other_seed(folder: Path) -> None:
    old, new = run_in(folder, 1), run_in(folder, 1).with_name("s7")
    shutil.move(old, new)
    record = json.loads((new / "provenance.json").read_text())
    (new / "provenance.json").write_text(json.dumps(record | {"key": f"{new.parent.name}-s7"}))
    sealed(new, lambda result: result.update(key=f"{new.parent.name}-s7", seed=7))
    sealed_frame(folder)


def missing_run(folder: Path) -> None:
    shutil.rmtree(run_in(folder, 1))
    sealed_frame(folder)


def more_trials(folder: Path) -> None:
    shutil.copytree(
        folder.parent / "other" / "toy_rates", folder / "records" / "toy_rates", dirs_exist_ok=True
    )


def rate_by_test_score(folder: Path) -> None:
    shutil.rmtree(run_in(folder, 0))
    shutil.copytree(folder.parent / "other" / "toy", folder / "records" / "toy", dirs_exist_ok=True)
    sealed_frame(folder)


def edited_frame(folder: Path) -> None:
    frame = pd.read_parquet(folder / "results.parquet")
    frame.loc[0, "score"] = 1.0
    (folder / "results.parquet").write_bytes(parquet(frame))


def edited_score(folder: Path) -> None:
    path = run_in(folder, 0) / "result.json"
    result = json.loads(path.read_text())
    result["metrics"][0]["value"] = 1.0
    path.write_text(json.dumps(result))


def edited_curve(folder: Path) -> None:
    path = run_in(folder, 0) / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss"', '"los"', 1))


def half_the_score(result: dict[str, Any]) -> None:
    metric = result["metrics"][0]
    metric["value"] /= 2
    metric["cluster_totals"] = [[bits, 2 * size] for bits, size in metric["cluster_totals"]]


def record_edit(**values: object) -> Edit:
    """submission.yaml has other values."""

    def change(folder: Path) -> None:
        path = folder / "submission.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))

    return change


LEAK = ("x_BTD.cumsum(1)", "x_BTD.sum(1, keepdim=True)")
BATCH_LEAK = ("x_BTD.cumsum(1)", "(x_BTD + x_BTD.mean(0)).cumsum(1)")
CHUNK_LEAK = ("x_BTD.cumsum(1)", "(x_BTD + torch.cat([x_BTD[:, 1:8], x_BTD[:, 7:]], 1)).cumsum(1)")
FEWER = """    def parameters_by_part(self):
        import dataclasses

        parts = super().parameters_by_part()
        return dataclasses.replace(parts, body=parts.body - 100)

"""
CHEAPER = """    def sequence_flops(self, length, source_length=0):
        import dataclasses

        flops = super().sequence_flops(length, source_length)
        return dataclasses.replace(flops, linear=flops.linear // 2)

"""
IN_TRAINING = (
    "        return self.out((x_BTD",
    "        x_BTD = x_BTD + self.out(x_BTD) if self.training else x_BTD\n        return self.out((x_BTD",
)
FALSE_MODULE = "    __module__ = 'architectures.backbones.decoder'\n"
CHEATS: dict[str, tuple[Edit, str]] = {
    "a future leak": (code_edit(*LEAK, runs=True), "change with later tokens"),
    "a leak through other sequences": (code_edit(*BATCH_LEAK, runs=True), "other sequences of the batch"),
    "a leak at a few positions": (code_edit(*CHUNK_LEAK, runs=True), "change with later tokens"),
    "other data": (result_edit(lambda r: r.update(fingerprint="0" * 16)), "fingerprint is 0000"),
    "other data in the settings": (setting_edit("task.sequence_length", 32), "digest is"),
    "more tokens": (
        result_edit(lambda r: [r[part].update(tokens=10**6) for part in ("planned", "training")]),
        "planned is {'tokens': 1000000",
    ),
    "more steps": (result_edit(lambda r: r["training"].update(steps=999)), "not those of its budget"),
    "a larger model": (result_edit(lambda r: r["widths"].update(d_model=512)), "widths is {'d_model': 512"),
    "FLOPs stated too low": (
        result_edit(lambda r: r.update(flops_per_token=r["flops_per_token"] / 2)),
        "flops_per_token is",
    ),
    "FLOPs hidden by the code": (
        code_edit("linear=linear_flops(self, length)", "linear=0", runs=True),
        "FLOPs of matrix products",
    ),
    "FLOPs hidden by the model": (
        code_edit("    def make_feedforward", CHEAPER + "    def make_feedforward", runs=True),
        "FLOPs of matrix products",
    ),
    "FLOPs hidden by a class that names a module of the project": (
        code_edit("    def make_feedforward", FALSE_MODULE + CHEAPER + "    def make_feedforward", runs=True),
        "FLOPs of matrix products",
    ),
    "FLOPs in training only": (code_edit(*IN_TRAINING, runs=True), "FLOPs of matrix products"),
    "parameters hidden by the code": (
        code_edit("    def make_feedforward", FEWER + "    def make_feedforward", runs=True),
        "parameters, and states",
    ),
    "chosen seeds": (other_seed, "its seed is not one of 0, 1"),
    "an edited score": (edited_score, "has changed since it was written"),
    "an edited score, with its hash": (
        result_edit(lambda r: r["metrics"][0].update(value=1.0)),
        "bits_per_byte is 1, and",
    ),
    "an edited score of validation": (
        result_edit(lambda r: r["validation"][0].update(value=1.0)),
        "bits_per_byte is 1, and",
    ),
    "an edited score in the frame": (edited_frame, "score of toy/my_toy.Toy-text"),
    "an edited curve": (edited_curve, "metrics.jsonl has changed since the run ended"),
    "a learning rate chosen by the test score": (rate_by_test_score, "the tuning runs choose on validation"),
    "too many trials": (more_trials, "learning rate 0.003 is one trial more than the tuning rule has"),
    "edited code": (code_edit("bias=False", "bias=True", runs=False), "my_toy.py is not the module"),
    "a wrong byte count": (result_edit(half_the_score), "cluster_totals of test bits_per_byte"),
    "fewer scored items": (
        result_edit(lambda r: r["metrics"][0].update(items=2)),
        "items of test bits_per_byte",
    ),
    "a bound declared as exact": (
        result_edit(lambda r: r["metrics"][0].update(likelihood="bound")),
        "'bound', and 'exact'",
    ),
    "another tokenizer": (setting_edit("task.sequence_length", 128), "digest is"),
    "a missing failed run": (missing_run, "/s1 is missing: failed runs are submitted"),
    "other rules": (
        record_edit(rules="0.9"),
        f"rules=0.9: this version of archbench checks submissions by rules {RULES}",
    ),
    "a changed harness": (
        lambda folder: (folder / "experiments").mkdir(),
        "experiments would replace an installed module",
    ),
    "another optimizer": (
        record_edit(overrides=[*MODEL, "optimizer.weight_decay=0.5"]),
        "optimizer.weight_decay=0.5: a submission sets",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_rejected(cheat: str, desk: Path, folder: Path) -> None:
    change, reason = CHEATS[cheat]
    change(folder)
    given = reasons(ValidateConfig(folder=str(folder), retrain=False, config_dir=f"{desk}/conf"))
    assert any(reason in line for line in given), given


@pytest.mark.full
def test_all_reasons_are_given_at_once(desk: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cheat in ("other rules", "edited code", "an edited score in the frame", "a wrong byte count"):
        CHEATS[cheat][0](folder)
    edited_frame(folder)
    assert main([str(folder), f"config_dir={desk}/conf"]) == 3
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "rejected"
    assert all(line.startswith("- ") for line in lines)
    for reason in ("rules=0.9", "my_toy.py is not", "results.parquet: score", "cluster_totals"):
        assert sum(reason in line for line in lines) >= 1, lines


@pytest.mark.full
def test_a_submission_by_the_rules_is_accepted(
    desk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert set(pd.read_parquet(folder / "results.parquet")["rules"]) == {RULES}
    monkeypatch.setattr(study_module, "listed", listed)
    code = main([str(folder), f"config_dir={desk}/conf", "run=/s1"])
    printed = capfd.readouterr()
    assert code == 0, printed
    assert printed.out.splitlines()[-1] == "accepted"


@pytest.mark.full
def test_edited_totals_with_valid_hashes_are_found_by_training_again(
    desk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def better(result: dict[str, Any]) -> None:
        metric = result["metrics"][0]
        metric["value"] *= 0.9
        metric["cluster_totals"] = [[0.9 * bits, size] for bits, size in metric["cluster_totals"]]

    result_edit(better)(folder)
    config = ValidateConfig(folder=str(folder), retrain=False, config_dir=f"{desk}/conf")
    assert reasons(config) == []
    monkeypatch.setattr(study_module, "listed", listed)
    forget_module()
    assert main([str(folder), f"config_dir={desk}/conf", "run=/s0"]) == 3
    assert "when it is trained again" in capfd.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_the_submissions_in_the_documentation_are_accepted(name: str) -> None:
    assert reasons(ValidateConfig(folder=str(EXAMPLES / name), retrain=False)) == []


SHALLOW = "_target_: my_toy.Toy\nnum_layers: 1\nd_ff: 40\n"


@pytest.mark.full
def test_the_yaml_of_a_model_is_submitted(
    desk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where only the submission has it, and it may not be changed."""
    (desk / "conf" / "backbone").mkdir()
    (desk / "conf" / "backbone" / "shallow.yaml").write_text(SHALLOW)
    monkeypatch.setattr(study_module, "listed", listed)
    monkeypatch.setenv("PYTHONPATH", f"{desk}:{commands.ROOT}")
    monkeypatch.syspath_prepend(desk)
    model = ("backbone=shallow", "task=text")
    train_by_rules(desk, model)
    out = folder.parent / "shallow"
    arguments = ["study=toy", *model, "authors=A. Author", f"runs={desk}/runs", f"config_dir={desk}/conf"]
    assert submit.main([*arguments, f"out={out}"]) == 0
    shutil.rmtree(desk / "conf" / "backbone")
    forget_module()
    monkeypatch.setenv("PYTHONPATH", str(commands.ROOT))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(desk)])
    config = ValidateConfig(folder=str(out), retrain=False, config_dir=f"{desk}/conf")
    assert reasons(config) == []
    assert main([str(out), f"config_dir={desk}/conf", "run=/s0"]) == 0, capfd.readouterr()
    (out / "configs" / "backbone" / "shallow.yaml").write_text(SHALLOW.replace("40", "41"))
    given = reasons(config)
    assert "configs/backbone/shallow.yaml is not the file of submission.yaml" in given
    assert any("is no run of the study" in line for line in given)


def test_a_submission_has_the_yaml_files_of_its_model_only(tmp_path: Path) -> None:
    files = {
        "mine": "defaults: [parts/base@_here_, _self_]\n_target_: my_toy.Toy\n",
        "parts/base": "d_ff: 8\n",
        "draft": "_target_: my_toy.Toy\n",
        "global": "# @package _global_\ntrainer: {test_examples: 1}\n",
        "sweep": "# @package hydra.sweeper\nparams: {trainer.test_examples: 1}\n",
    }
    for name, text in files.items():
        path = tmp_path / "backbone" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    configs = model_configs(["task=text", "backbone=mine"], tmp_path)
    assert sorted(configs) == ["backbone/mine.yaml", "backbone/parts/base.yaml"]
    assert configs["backbone/mine.yaml"] == hashlib.sha256(files["mine"].encode()).hexdigest()
    assert model_configs(["backbone=decoder"], tmp_path) == {}
    study = read_study("compare", tmp_path)
    changed = {name: sections_set(study, [f"backbone={name}", "task=recall_8_pairs"]) for name in files}
    assert changed["mine"] == []
    assert changed["global"] == ["trainer"]
    assert changed["sweep"] == ["hydra"]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("backbone/mine.yaml", None),
        ("study/compare.yaml", "a submission has YAML files of its backbone only"),
        ("backbone/decoder.yaml", "is a file of the project"),
    ],
)
def test_other_yaml_files_are_rejected(file: str, reason: str | None, tmp_path: Path) -> None:
    path = tmp_path / "configs" / file
    path.parent.mkdir(parents=True)
    path.write_text("d_model: 8\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    listed_file = Submission(study="compare", overrides=[], authors="A.", configs={file: digest})
    found = list(config_problems(listed_file, tmp_path))
    assert found == [] if reason is None else reason in found[0]
    (unlisted,) = config_problems(Submission(study="compare", overrides=[], authors="A."), tmp_path)
    assert "is not the file of submission.yaml" in unlisted


def trials(*losses: tuple[float, float], protocol: str | None = None) -> pd.DataFrame:
    """The tuning runs of a model by learning rate and loss, as ``rate_table`` returns them."""
    names = {
        "task": "text",
        "scale": "nano",
        "axis": "flops",
        "target": 1.0,
        "backbone": "mamba",
        "batch_size": 4.0,
    }
    rows = [
        {**names, "learning_rate": rate, "validation": loss, "seed": 100, "metric": "loss", "totals": None}
        for rate, loss in losses
    ]
    return pd.DataFrame(rows).assign(direction="lower", protocol=protocol)


def rules(*learning_rates: float, fixed_grid: bool) -> StudyRules:
    return StudyRules(
        study="toy", folder="toy", rates_folder="toy_rates", swept={}, learning_rates=list(learning_rates),
        fixed_grid=fixed_grid, search_path=[],
    )  # fmt: skip


def test_a_search_has_the_trials_that_follow_from_its_results() -> None:
    grid = rules(0.003, 0.01, fixed_grid=False)
    extended = ((0.003, 2.0), (0.01, 1.0), (0.03, 1.5))
    assert list(trial_problems(grid, trials(*extended))) == []
    (problem,) = trial_problems(grid, trials(*extended, (0.1, 0.5)))
    assert "learning rate 0.1 is one trial more" in problem
    (problem,) = trial_problems(grid, trials(*extended[:2]))
    assert "learning rate 0.03 was not tried" in problem
    (problem,) = trial_problems(rules(0.003, 0.01, fixed_grid=True), trials(*extended))
    assert "learning rate 0.03 is one trial more" in problem


def test_a_run_that_is_trained_again_may_differ_within_the_tolerance() -> None:
    run = pd.Series(
        {
            "study": "toy",
            "cell": "a-b-c",
            "digest": "0",
            "seed": 1,
            "status": "complete",
            "score": 1.0,
            "validation": 2.0,
        }
    )
    assert not list(repeated_problems(run, run, 0.0))
    assert list(repeated_problems(run, pd.Series({**run, "score": 1.05}), 0.02))
    assert not list(repeated_problems(run, pd.Series({**run, "score": 1.01}), 0.02))
    assert list(repeated_problems(run, pd.Series({**run, "status": "diverged"}), 0.02))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "it has no submission.yaml"),
        ({"score": 3}, "score: Submission has no such key"),
        ({"study": "recal_state"}, "there is no conf/study/recal_state.yaml"),
        ({"study": "recall_state"}, "there is no conf/study/recall_state_rates.yaml"),
    ],
)
def test_a_folder_that_cannot_be_read_is_rejected_with_the_reason(
    record: dict[str, object] | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if record is not None:
        honest = {"study": "compare", "overrides": ["backbone=decoder"], "authors": "A. Author"}
        (tmp_path / "submission.yaml").write_text(yaml.safe_dump(honest | record))
    assert main([str(tmp_path)]) == 3
    assert reason in capsys.readouterr().out
    assert main([f"{tmp_path}/none"]) == 2


def test_a_submission_changes_the_model_only() -> None:
    study = read_study("compare")
    assert list(study.check(["backbone=kda", "backbone.d_state=8", "task=infilling,recall_8_pairs"])) == []
    assert list(study.check(["task=pairs"])) == ["task=pairs is not swept by study=compare"]
    assert "backbonne=x: a submission sets" in next(study.check(["backbonne=x"]))
    assert "sweeps variant" in next(read_study("laptop").check(["backbone=kda"]))
    with pytest.raises(ConfigError, match="there is no conf/study/none"):
        read_study("none")
