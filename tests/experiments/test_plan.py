"""The plan of a study: its cells, what they cost and what is done; and that only the rest is run."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from archbench.experiments import plan
from archbench.experiments.config import CONF
from archbench.experiments.config.cells import cells as compose_cells
from archbench.experiments.runtime.console import count
from tests.experiments import commands
from tests.results import write_result

RECALL = (*commands.TINY, *commands.RECALL)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines of the plan that these words print, the last one included."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry point sets it; this takes it back

    def run(*words: str) -> list[str]:
        capsys.readouterr()
        plan.main(words)
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        return [
            line for line in lines if re.match(r"(decoder|mamba|moe|encoder) |.* runs? (?:is|are) done", line)
        ]

    return run


def test_a_study_lists_all_its_cells_and_runs_none(tmp_path: Path) -> None:
    params = OmegaConf.load(CONF / "study" / "compare.yaml").hydra.sweeper.params
    expected = {
        (f"{task}, nano", backbone)
        for backbone in params.backbone.split(",")
        for task in params.task.split(",")
    }
    ended = commands.run("plan", "study=compare", f"runs={tmp_path}")
    assert ended.returncode == 0, ended.stderr
    costs: dict[tuple[str, str], list[str]] = {}
    setups: dict[tuple[str, str], list[str]] = {}
    for line in ended.stdout.splitlines():
        if found := re.match(r"(\w+, nano), held equal: ", line):
            task_name, table = found[1], setups
        elif line.startswith("model "):
            table = setups if table is costs else costs
        elif words := [word for word in line.split() if (task_name, line.split()[0]) in expected]:
            table[task_name, words[0]] = words
    assert costs.keys() == setups.keys() == expected
    for row in costs.values():
        assert re.fullmatch(r"[+-]0\.\d\d%", row[1])
        assert row[-2:] == [str(params.seed), "missing"]
    for task in params.task.split(","):
        target = commands.settings("study=compare", f"task={task}").scale.target
        assert f"{task}, nano, held equal: training FLOPs per token, {target:,} (flops)" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80
    runs = len(expected) * len(str(params.seed).split(","))
    assert f"0 of {runs} runs are done" in ended.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_dir()], "a run folder was made"


def test_a_cell_shows_what_its_record_will_say(cells, tmp_path: Path) -> None:
    words = (*RECALL, "backbone=mamba", f"runs={tmp_path}")
    costs, setup, _ = cells(*words)
    assert not any(tmp_path.iterdir())
    found = commands.result(commands.train(*words))
    parameters, planned = found["parameters"], found["planned"]
    expected = [f"{found['matched']['residual']:+.2%}"]
    expected += [count(parameters[part]) for part in ("body", "total", "active")]
    expected += [count(found["flops_per_token"]), count(planned["flops"]), "0", "missing"]
    assert costs.split() == ["mamba", *expected]
    shape = found["setup"]
    assert shape["num_heads"] is None
    numbers = [shape[name] for name in ("d_model", "num_layers", "d_state", "batch_size", "sequence_length")]
    width, layers, state, batch, length = map(str, numbers)
    expected = [
        width,
        layers,
        "-",
        state,
        batch,
        "x",
        length,
        f"{shape['learning_rate']:g}",
        count(planned["tokens"]),
    ]
    assert setup.split() == ["mamba", *expected, f"{count(found['state_bytes_2k'])}B"]


def test_a_mixture_held_equal_on_all_its_experts_is_noted(tmp_path: Path) -> None:
    [cell] = compose_cells((*RECALL, "backbone=moe", f"runs={tmp_path}"))
    row = plan._row(plan._read(cell))
    assert row.cost.matched.note is not None
    assert "counts all experts" in plan._equal_sizes("recall, nano", [row])[-1]


def test_the_status_of_every_cell(cells, tmp_path: Path) -> None:
    words = (*RECALL, f"runs={tmp_path}")

    def status() -> str:
        return cells(*words)[0].split(" 0 ", 1)[1].strip()

    assert status() == "missing"
    folder = commands.train(*words)
    assert status() == "done"
    assert cells(*words)[-1].startswith("1 of 1 run is done")
    record = commands.result(folder)
    record |= {"status": "diverged", "message": "loss is nan\nmore"}
    (folder / "result.json").write_text(json.dumps(record))
    assert status() == "unreadable"
    assert cells(*words)[-1].startswith("0 of 1 run is done")
    write_result(folder, record)
    assert status() == "diverged"
    assert "decoder s0 diverged: loss is nan" in commands.run("plan", *words).stdout.splitlines()
    (folder / "result.json").unlink()
    assert status() == "begun, step 31"
    shutil.rmtree(folder / "checkpoints")
    assert status() == "begun"


def test_an_impossible_cell_is_said_beside_the_others(tmp_path: Path) -> None:
    words = ("backbone=decoder,encoder", "objective=causal_lm", *RECALL)
    ended = commands.run("plan", "-m", *words, f"runs={tmp_path}")
    assert ended.returncode == 2
    line, _ = (line for line in ended.stdout.splitlines() if line.startswith("decoder "))
    assert line.split()[-1] == "missing"
    assert ended.stderr.startswith("error: backbone=encoder objective=causal_lm ")
    assert "needs a causal backbone" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "0 of 2 runs are done" in ended.stdout


def test_issuing_a_study_again_runs_only_what_is_missing(cells, tmp_path: Path) -> None:
    words = ("-m", *RECALL, "study.name=tiny", "seed=0,1", f"runs={tmp_path}")
    first = commands.run("train", *words)
    assert first.returncode == 0, first.stderr
    kept, removed = sorted(tmp_path.glob("tiny/*/s*"))
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    record = commands.result(removed)
    shutil.rmtree(removed)
    assert cells(*words)[-1].startswith("1 of 2 runs are done")

    second = commands.run("train", *words)
    assert second.returncode == 0, second.stderr
    assert "[decoder-recall-nano s0] already complete" in second.stdout
    assert "[decoder-recall-nano s1] answer_accuracy " in second.stdout
    assert "[decoder-recall-nano s0] step" not in second.stdout
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*")} == before
    assert commands.result(removed)["metrics"] == record["metrics"]
    assert cells(*words)[-1].startswith("2 of 2 runs are done")


@pytest.mark.parametrize("flag", ["--list", ""])
def test_a_wrong_run_is_named_beside_the_others(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["backbone=decoder,mambo", "-m", *RECALL, *filter(None, [flag])]  # options stand anywhere
    with pytest.raises(SystemExit) as stopped:
        plan.main(words)
    printed = capsys.readouterr()
    assert stopped.value.code == 2
    assert "decoder" in printed.out
    assert "error: backbone=mambo " in printed.err
    assert "did you mean 'mamba'?" in printed.err


@pytest.mark.parametrize("study", ["..", "../escaped"])
def test_a_study_that_would_leave_the_runs_folder_is_refused(
    cells, tmp_path: Path, study: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cells("-m", *RECALL, f"study.name={study}", f"runs={tmp_path}/runs")
    assert stopped.value.code == 2
    assert "letters, digits" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


def test_a_gpu_that_states_its_peak_gets_memory_hours_and_a_time_limit(tmp_path: Path) -> None:
    words = (
        "task=fineweb_edu",
        f"task.cache_dir={tmp_path}",
        "device=h100",
        "parallel=fsdp",
        f"runs={tmp_path}",
    )
    words = (*words, "parallel.gpus_per_node=2", "budget.tokens=1_000_000_000_000", "device.memory_gib=0.01")
    ended = commands.run("plan", *words, "budget.micro_batch_size=4")
    assert ended.returncode == 0, ended.stderr
    assert "fineweb_edu is not prepared" in ended.stdout
    assert "Memory of each GPU at the peak of a step" in ended.stdout
    rows = [line.strip() for line in ended.stdout.splitlines()]
    for row in (r"1 x 2\s+4\s+[\d.]+\s+40%.*B", r"0-00:\d0:00"):
        assert sum(bool(re.fullmatch(rf"decoder-fineweb_edu-nano\s+{row}", line)) for line in rows) == 1, rows
    assert "do not fit into the 0.01 GiB of a GPU" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_a_device_without_a_stated_peak_has_no_estimate(tmp_path: Path) -> None:
    [cell] = compose_cells([*RECALL, f"runs={tmp_path}"])
    assert plan._row(plan._read(cell)).estimated is None
