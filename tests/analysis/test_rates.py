from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from archbench.analysis import rates
from archbench.analysis.declared import runs
from archbench.analysis.load.study import load_study
from archbench.analysis.rates import main


@pytest.fixture
def swept(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """A decoder whose best rate lies inside the grid, a mamba whose best lies at its edge."""
    scores = {
        "decoder": {3e-4: 3.1, 1e-3: 2.6, 3e-3: 2.3, 1e-2: 2.35, 3e-2: 2.5},
        "mamba": {1e-3: 2.9, 3e-3: 2.7, 1e-2: 2.4},
    }
    for backbone, by_rate in scores.items():
        for index, (rate, score) in enumerate(by_rate.items()):
            folder = write_run(backbone, 100, score, study="rates", digest=f"{index}{backbone[0]}")
            (folder / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": rate}}))
            record = json.loads((folder / "provenance.json").read_text())
            record["command"] = "archbench train study=rates"
            (folder / "provenance.json").write_text(json.dumps(record))
    return tmp_path / "runs"


def test_the_choice_is_printed_and_written(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study=rates", f"runs={swept}"]) == 0
    printed = capsys.readouterr().out
    chosen = yaml.safe_load(printed.split("for study.values\n")[1].split("wrote")[0])
    assert chosen == {"text": {"decoder": 3e-3, "mamba": 1e-2}}
    written = yaml.safe_load((swept / "rates" / "analysis" / "rates.yaml").read_text())
    assert (written["study"], written["seeds"]) == ("rates", [100])
    arms = {arm["backbone"]: arm for arm in written["arms"]}
    assert arms["decoder"]["bracketed"]
    assert not arms["mamba"]["bracketed"]
    assert arms["mamba"]["learning_rate"] == 1e-2
    # The last value on validation: the planted ones fall to the score times 1 + 1/50.
    assert arms["decoder"]["validation"] == pytest.approx(2.3 * 1.02)


def test_an_edge_is_said_with_the_command_that_extends_it(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["study=rates", f"runs={swept}"])
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.startswith(("decoder ", "mamba "))}
    assert "edge" not in rows["decoder"]
    note = " at the upper edge of the grid: extend it; 3 rates: a grid has 5 or more"
    assert " ".join(printed.split()).count(note) == 1
    assert "at the upper edge" in rows["mamba"]
    words = "-m study=rates backbone=mamba optimizer.learning_rate=0.03 seed=100"
    commands = [line for line in printed.splitlines() if line.startswith("extend: ")]
    assert commands == [f"extend: archbench train {words}"]


def test_a_model_that_lacks_a_seed_gets_no_choice_and_is_asked_for_it(
    swept: Path, write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for index, rate in enumerate((3e-4, 1e-3, 3e-3, 1e-2, 3e-2)):
        folder = write_run("decoder", 101, 2.0, study="rates", digest=f"{index}d")
        (folder / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": rate}}))
    assert main(["study=rates", f"runs={swept}"]) == 0
    printed = capsys.readouterr().out
    chosen = yaml.safe_load(printed.split("for study.values\n")[1].split("wrote")[0])
    assert set(chosen["text"]) == {"decoder"}
    written = yaml.safe_load((swept / "rates" / "analysis" / "rates.yaml").read_text())
    assert [arm["backbone"] for arm in written["arms"]] == ["decoder"]
    assert "are missing (101)" in " ".join(printed.split())
    [command] = [line for line in printed.splitlines() if line.startswith("extend: ")]
    assert command.endswith("optimizer.learning_rate=0.001,0.003,0.01,0.03 seed=100,101")


def test_extending_goes_on_until_the_optimum_is_inside(
    swept: Path, write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {3e-2: 2.2, 1e-1: 2.6}
    trained = []

    def train(words: list[str], name: str) -> int:
        rate = float(next(word for word in words if word.startswith("optimizer.")).partition("=")[2])
        folder = write_run("mamba", 100, results[rate], study="rates", digest=f"x{len(trained)}")
        (folder / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": rate}}))
        trained.append(rate)
        return 1

    monkeypatch.setattr(runs, "train_missing", train)
    assert main(["study=rates", f"runs={swept}", "--extend"]) == 0
    assert trained == [3e-2, 1e-1]
    written = yaml.safe_load((swept / "rates" / "analysis" / "rates.yaml").read_text())
    assert {arm["backbone"]: arm["learning_rate"] for arm in written["arms"] if arm["bracketed"]} == {
        "decoder": 3e-3, "mamba": 3e-2,
    }  # fmt: skip


def test_arms_with_the_same_next_rates_train_together() -> None:
    commands = [
        ["-m", "variant=a", "optimizer.learning_rate=0.1"],
        ["-m", "variant=b", "optimizer.learning_rate=0.1"],
        ["-m", "variant=c", "optimizer.learning_rate=0.3"],
        ["-m", "backbone=d", "variant=a", "optimizer.learning_rate=0.1"],
        ["-m", "task=text", "optimizer.learning_rate=0.1"],
    ]
    assert rates.joined(commands) == [
        ["-m", "optimizer.learning_rate=0.1", "variant=a,b"],
        ["-m", "optimizer.learning_rate=0.3", "variant=c"],
        *commands[3:],
    ]


def test_a_protocol_searches_until_each_best_rate_is_bracketed(
    write_run: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained: list[str] = []

    def write(backbone: str, rate: float, seed: int) -> None:
        optimum = {"decoder": 0.003, "mamba": 0.02}[backbone]
        loss = 2.3 + 0.3 * math.log10(rate / optimum) ** 2 + 0.001 * seed
        digest = f"{rate:.4f}{backbone[0]}".replace(".", "")
        folder = write_run(backbone, seed, loss, study="rates", digest=digest)
        config = {"optimizer": {"learning_rate": rate}, "study": {"protocol": 1.0}}  # as typed
        (folder / "config.yaml").write_text(yaml.safe_dump(config))

    def train(words: list[str], name: str) -> int:
        changed = dict(word.split("=") for word in words if "=" in word)
        trained.append(f"{changed['backbone']} {changed['optimizer.learning_rate']}")
        for backbone in changed["backbone"].split(","):
            for rate in changed["optimizer.learning_rate"].split(","):
                for seed in changed["seed"].split(","):
                    write(backbone, float(rate), int(seed))
        return 1

    for backbone in ("decoder", "mamba"):
        for seed in (100, 101):
            write(backbone, 0.003, seed)
    monkeypatch.setattr(runs, "train_missing", train)
    assert main(["study=rates", f"runs={tmp_path / 'runs'}"]) == 0
    assert "search not finished: next 0.001, 0.01" in re.sub(r"\s+", " ", capsys.readouterr().out)
    assert main(["study=rates", f"runs={tmp_path / 'runs'}", "--extend"]) == 0
    assert trained == [
        "decoder,mamba 0.001,0.01", "decoder 0.0018,0.0056", "mamba 0.03", "mamba 0.1",
        "mamba 0.018,0.056",
    ]  # fmt: skip
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines() if line.startswith("mamba ")]
    mamba = [*lines[0], *(cell for line in lines[1:] for cell in line[1:])]  # continued in another table
    assert mamba[-2:] == ["7", "0.027"]  # trials, sensitivity
    written = yaml.safe_load((tmp_path / "runs" / "rates" / "analysis" / "rates.yaml").read_text())
    assert written["seeds"] == [100, 101]
    assert set(load_study(tmp_path / "runs", "rates")["protocol"]) == {"1.0"}
    chosen = {arm["backbone"]: (arm["learning_rate"], arm["bracketed"]) for arm in written["arms"]}
    assert chosen == {"decoder": (0.003, True), "mamba": (0.018, True)}


def test_extending_stops_where_training_cannot(
    swept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "train_missing", lambda words, name: 1)
    assert main(["study=rates", f"runs={swept}", "--extend"]) == 0
    assert "at the upper edge of the grid: extend it" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study=rates"], "study=rates is not in"),
        (["stdy=rates"], "'stdy=rates': did you mean 'study='?"),
        (["study="], "'study=': write study=VALUE"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, f"runs={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {words}")
    assert error.count("\n") == 1


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("study=", "runs=", "--extend", "rates.yaml"))
