"""F35 to F38: code, provenance, curves and results that change without a word."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from archbench.analysis import compare
from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.arms import arm_table
from archbench.experiments.check import check_study
from archbench.experiments.run.load_model import load_model
from archbench.experiments.run.model_files import read_model_spec
from archbench.experiments.run.session import code_modules
from archbench.experiments.runtime import imported_sources
from archbench.experiments.runtime.errors import CheckpointError, DataError
from archbench.experiments.tracking import provenance as provenance_module
from archbench.experiments.tracking.provenance import code_hash, code_hashes, provenance, used_packages
from archbench.experiments.tracking.run_files import DataSource, checksum, file_record
from archbench.experiments.tracking.run_folder import RunFolder
from tests.experiments import commands
from tests.faults.test_fault_drift import edit
from tests.results import write_result

WORDS = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=10", "trainer.log_every=5")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.train(*WORDS, f"runs={tmp_path_factory.mktemp('finished')}")


@pytest.fixture
def ended(finished: Path, tmp_path: Path) -> Path:
    """A finished run in a runs folder of its own."""
    folder = commands.settings(*WORDS, f"runs={tmp_path}").folder
    shutil.copytree(finished, folder)
    return folder


@pytest.fixture
def interrupted(ended: Path) -> Path:
    """The same as a kill before its result would have left it."""
    (ended / "result.json").unlink()
    return ended


def forget() -> None:
    """Hash the code again, as a new process would that imports it from its files."""
    provenance_module._hash.cache_clear()
    for path in [path for path in imported_sources.kept() if "f35_" in path]:
        del imported_sources._sources[path]


def resume(tmp_path: Path) -> dict[str, Any]:
    return commands.result(commands.train(*WORDS, f"runs={tmp_path}"))


def test_f35_code_of_ones_own_and_what_it_imports_is_hashed_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", "")  # no git
    for name in ("f35_mine", "f35_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "f35_helper.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "f35_mine.py").write_text(
        "from archbench.architectures.backbones.decoder import Decoder as Mine\n"
        "from f35_helper import double\n"
    )
    __import__("f35_mine")
    asked = ["archbench.architectures.backbones.decoder", "f35_mine"]

    def now() -> str:
        forget()
        return code_hash(code_hashes(asked))

    first = now()
    assert first != code_hash(code_hashes())
    (tmp_path / "f35_helper.py").write_text("def double(x):\n    return 3 * x\n")
    second = now()
    (tmp_path / "f35_mine.py").write_text("x = 1\n")
    assert len({first, second, now()}) == 3
    forget()
    record("F35", "module of the user's, or one it imports, changed", 2, "another hash of the code")


def test_f35_numbers_and_late_imports_count_and_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "f35_rates.py").write_text("RATE = 2\n")
    (tmp_path / "f35_late.py").write_text("import yaml\n")
    (tmp_path / "f35_model.py").write_text(
        "from archbench.architectures.backbone import Backbone\nfrom f35_rates import RATE\n"
        "def run():\n    import f35_late\n    return f35_late, RATE\n"
    )

    def now() -> str:
        forget()
        return code_hash(code_hashes(["f35_model"]))

    hashes = [now()]
    for name in ("f35_rates", "f35_late"):
        (tmp_path / f"{name}.py").write_text("import yaml\nRATE = 3\n")
        hashes.append(now())
    assert len(set(hashes)) == 3
    assert used_packages(["archbench.architectures.backbones.decoder", "f35_model"]) == {"PyYAML"}
    assert used_packages(["archbench.architectures.backbones.decoder"]) == set()
    data = DataSource(task="text", fingerprint=None)
    found = provenance("k", torch.device("cpu"), "fp32", data, {}, ["f35_model"])
    assert found.versions["PyYAML"]
    assert list(found.code) == [
        "archbench.architectures",
        "archbench.experiments",
        "f35_late",
        "f35_model",
        "f35_rates",
    ]
    forget()
    record("F35", "a number that code imports, or a late import, changed", 2, "another hash of the code")


def test_f35_an_optimizer_and_a_schedule_of_ones_own_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "f35_pack").mkdir()
    (tmp_path / "f35_pack" / "flat.py").write_text(
        "SEVERAL_DECAYS = False\ndef factor(*_):\n    return 1.0\n"
    )
    (tmp_path / "f35_pack" / "own.py").write_text(
        "from archbench.experiments.training.optimizers.adamw import AdamW\nclass Own(AdamW):\n    pass\n"
    )
    words = ("optimizer.schedule=f35_pack.flat", "optimizer._target_=f35_pack.own.Own")
    modules = code_modules(commands.settings(*commands.TINY, *words))
    assert {"f35_pack.flat", "f35_pack.own"} <= set(modules)
    before = code_hashes(modules)
    (tmp_path / "f35_pack" / "flat.py").write_text(
        "SEVERAL_DECAYS = False\ndef factor(*_):\n    return 2.0\n"
    )
    forget()
    assert code_hashes(modules) != before
    record("F35", "optimizer or schedule of the user's changed", 1, "another hash of the code")


def test_f35_a_file_that_git_does_not_track_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f35_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(provenance_module, "RECORDED", ("f35_package",))
    found = []
    for name in ("__init__.py", "new.py", "kernel.cpp", "notes.txt"):
        (tmp_path / "f35_package" / name).write_text("1")
        forget()
        found.append(code_hash(code_hashes()))
    forget()
    assert len(set(found)) == 3
    assert found[2] == found[3]


LOST: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_text(""),
    "without keys": lambda path: path.write_text("{}"),
    "of another type": lambda path: path.write_text('{"data": 3, "versions": [], "device": null}'),
    "nested deeply": lambda path: path.write_text("[" * 100_000),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("how", LOST)
def test_f36_a_lost_provenance_does_not_switch_the_data_check_off(
    interrupted: Path, tmp_path: Path, how: str, record: Any
) -> None:
    LOST[how](interrupted / "provenance.json")
    with pytest.raises(CheckpointError, match=r"provenance\.json: .*continue_from=") as caught:
        resume(tmp_path)
    assert caught.value.exit_code == 6
    record("F36", f"provenance.json {how} before resuming", 1, "exit 6 with the remedy")


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b'"loss": ') + 9] ^= 1
    path.write_bytes(data)


CURVES: dict[str, Callable[[Path], object]] = {
    "a digit flipped": _flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": lambda path: path.unlink(),
    "with a row of zeros": lambda path: path.write_bytes(bytes(100) + path.read_bytes()[100:]),
}


@pytest.mark.parametrize("how", CURVES)
def test_f37_a_run_with_damaged_curves_is_not_exact(
    interrupted: Path, tmp_path: Path, how: str, record: Any
) -> None:
    CURVES[how](interrupted / "metrics.jsonl")
    found = resume(tmp_path)
    assert found["status"] == "complete"
    assert found["resume"]["exact"] is False
    assert list(found["resume"]["changed"]) == ["metrics.jsonl"]
    assert any("metrics.jsonl" in line for line in Comparison(load_study(tmp_path, "single")).warnings)
    record("F37", f"metrics.jsonl {how} before resuming", 1, "warned, exact: false, said in every table")


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "provenance.json"])
def test_f37_files_that_change_after_the_end_are_said_in_every_table(
    ended: Path, tmp_path: Path, name: str, record: Any
) -> None:
    assert not any("damaged" in line for line in Comparison(load_study(tmp_path, "single")).warnings)
    text = (ended / name).read_text()
    (ended / name).write_text(text[::-1].replace("1", "2", 1)[::-1])  # the first may be in the run's key
    [line] = [line for line in Comparison(load_study(tmp_path, "single")).warnings if "damaged" in line]
    assert name in line
    record("F37", f"{name} changed after the end", 1, "said in every table")


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "provenance.json"])
def test_f37_a_run_that_has_ended_and_lost_a_file_is_not_taken_for_complete(
    ended: Path, tmp_path: Path, name: str, record: Any
) -> None:
    (ended / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: is missing: restore it, or remove the run's folder"):
        resume(tmp_path)
    assert not (ended / name).exists()
    assert check_study(tmp_path / "single").exit_code == 6
    record("F37", f"{name} removed after the end", 1, "exit 6 with the remedy, found by archbench check")


def test_f37_a_tokenizer_that_changes_after_the_end_is_said_and_not_used(tmp_path: Path, record: Any) -> None:
    """Two merges that change places give the same tokens other texts, and none is unknown."""
    (tmp_path / "text").mkdir()
    for number in range(40):
        (tmp_path / "text" / f"{number}.txt").write_text(f"document {number} " + f"{number * 7919} " * 40)
    words = ("task=text", "task.source=files", f"task.paths=[{tmp_path}/text/*.txt]", "budget.tokens=500")
    words += ("task.sequence_length=32", "task.tokenizer.kind=bpe", "task.tokenizer.vocab_size=300")
    folder = commands.train(*commands.TINY, *words, f"task.cache_dir={tmp_path}/cache", f"runs={tmp_path}")
    load_model(folder, torch.device("cpu"))
    path = folder / "tokenizer.json"
    whole = path.read_text()
    tree = json.loads(whole)
    merges = tree["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    path.write_text(json.dumps(tree))
    assert load_study(tmp_path, "single")["damaged"].tolist() == ['["tokenizer.json"]']
    assert "tokenizer.json: has changed since the run ended" in check_study(folder.parents[1]).records[0]
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: has changed since the run ended"):
        load_model(folder, torch.device("cpu"))
    path.unlink()
    assert check_study(folder.parents[1]).exit_code == 6
    with pytest.raises(DataError, match=r"tokenizer\.json: cannot be read .*restore it"):
        load_model(folder, torch.device("cpu"))
    path.write_text(whole)
    assert check_study(folder.parents[1]).exit_code == 0
    (prepared,) = tmp_path.glob("cache/*/tokenizer.json")
    for content in (b"{}", b"\xff\xfe", None):
        prepared.unlink() if content is None else prepared.write_bytes(content)
        report = check_study(folder.parents[1])
        assert (report.exit_code, len(report.data)) == (3, 1), report
        assert f"delete {prepared.parent} and run again" in report.data[0]
    record("F37", "two merges of a tokenizer exchanged", 1, "said in every table, exit 6 where it is used")
    record("F33", "tokenizer of prepared tokens damaged or lost", 3, "exit 3 with the remedy")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.yaml", "metrics.jsonl", "provenance.json"])
def test_f37_a_link_to_itself_in_the_place_of_a_file_is_named(
    ended: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], record: Any
) -> None:
    """A run of another seed is compared all the same."""
    other = commands.train(*WORDS, f"runs={tmp_path}", "seed=1")
    for run in (ended, other):
        (run / "tokenizer.json").write_text("{}")
        edit(run / "result.json", with_tokenizer)
    load_study(tmp_path, "single")  # what it reads is kept
    (ended / name).unlink()
    (ended / name).symlink_to("a")
    (ended / "a").symlink_to(name)
    capsys.readouterr()
    assert compare.main(["study=single", f"runs={tmp_path}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert name in said
    assert f"{other.parent.name}/s1" not in said
    assert any(name in line for line in check_study(tmp_path / "single").records)
    record("F37", f"{name} a link to itself", 1, "said in every table, found by archbench check")


def with_tokenizer(tree: dict[str, Any]) -> None:
    """Edit a result as if the run had learned the tokenizer ``{}``."""
    tree["files"]["tokenizer.json"] = file_record(b"{}").tree()
    tree["checksum"] = checksum(tree)


def test_f37_a_score_that_changes_in_the_result_is_no_score(ended: Path, tmp_path: Path, record: Any) -> None:
    edit(ended / "result.json", lambda tree: tree["metrics"][0].update(value=0.15))
    run = load_study(tmp_path, "single").iloc[0]
    assert run["status"] == "unreadable"
    assert "has changed since it was written" in run["message"]
    with pytest.raises(CheckpointError, match="has changed since it was written"):
        resume(tmp_path)
    record("F37", "score changed in result.json", 1, "unreadable, exit 6")


@pytest.mark.parametrize("name", ["result.json", "model.json"])
def test_f37_a_flipped_letter_of_the_checksum_s_name_is_found(
    ended: Path, tmp_path: Path, record: Any, name: str
) -> None:
    path = ended / name
    path.write_text(path.read_text().replace('"checksum"', '"chebksum"'))
    with pytest.raises(CheckpointError, match=name):
        RunFolder(ended).result() if name == "result.json" else read_model_spec(ended)
    assert check_study(tmp_path / "single").exit_code != 0
    record("F37", f"the name of the checksum in {name} damaged", 1, "exit 6, found by archbench check")


def test_f38_seeds_on_different_data_are_not_averaged(ended: Path, tmp_path: Path, record: Any) -> None:
    other = ended.parent / "s1"
    shutil.copytree(ended, other)

    key = f"{ended.parent.name}-s1"
    edit(other / "provenance.json", lambda tree: tree.update(key=key))
    copied = json.loads((other / "result.json").read_text())
    write_result(other, copied | {"key": key, "seed": 1, "fingerprint": "0123456789abcdef"})
    arm = arm_table(load_study(tmp_path, "single")).query("kind == 'arm'").iloc[0]
    assert arm["score"] != arm["score"]
    assert "not averaged" in arm["message"]
    assert "0123456789abcdef: 1" in arm["message"]
    record("F38", "two fingerprints among the seeds of a model", 1, "not averaged, said")


def test_results_are_json_of_the_right_types(tmp_path: Path) -> None:
    for text in ('{"status": 3}', '{"status": "complete", "metrics": "x"}', "[]", "3", "[" * 100_000, ""):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"result\.json: is damaged"):
            RunFolder(tmp_path).result()
    write_result(tmp_path, {"status": "complete", "new": 1})
    assert RunFolder(tmp_path).result() is not None, "other keys are left out"
    for change in ({"status": "finished"}, {"seed": "0"}, {"training": {"steps": True}}, {"metrics": [{}]}):
        write_result(tmp_path, change)
        with pytest.raises(CheckpointError, match=rf"result\.json: is damaged \({next(iter(change))}"):
            RunFolder(tmp_path).result()
