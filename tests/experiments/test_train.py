"""Whole runs: every backbone to a complete record, sweeps, divergence, and what must not matter."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from archbench.architectures.backbone import Backbone
from archbench.experiments.config import CONF
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM
from archbench.experiments.run.model_files import load_state
from archbench.experiments.run.plan import plan
from archbench.experiments.run.run import run
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.errors import ConfigError, DivergedError
from tests.experiments import commands

LIKELIHOODS = {
    "causal_lm": "exact",
    "masked_lm": "pseudo",
    "masked_diffusion": "bound",
    "block_diffusion": "bound",
    "span_corruption": "pseudo",
}
OBJECTIVES = sorted(path.stem for path in (CONF / "objective").glob("*.yaml"))
RECORD = {
    *("format", "key", "study", "cell", "digest", "seed", "backbone", "objective", "task", "scale"),
    *(
        "parameters",
        "flops_per_token",
        "planned",
        "state_bytes_2k",
        "matched",
        "setup",
        "widths",
        "fingerprint",
        "references",
        "resume",
        "rules",
        "validation",
    ),
    *("status", "message", "training", "metrics", "finished_at"),
    *("files", "checksum"),
}


def words(backbone: str, task: str, *more: str) -> tuple[str, ...]:
    return (f"backbone={backbone}", *commands.task_words(task), *commands.TINY, *more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """A finished run folder for each backbone and task."""
    runs = tmp_path_factory.mktemp("runs")
    return functools.cache(lambda *case: commands.train(*words(*case), f"runs={runs}"))


@functools.cache
def planned_windows() -> int | None:
    """Windows of one epoch of the text."""
    return plan(commands.settings(*words("decoder", "text"))).task.num_examples("train")


@pytest.mark.parametrize("task", commands.TASKS)
@pytest.mark.parametrize("backbone", commands.BACKBONES)
def test_every_backbone_leaves_a_complete_record(trained, backbone: str, task: str) -> None:
    folder = trained(backbone, task)
    found = commands.result(folder)
    assert set(found) - {"sample"} == RECORD  # models of text that generate have one
    assert (found["status"], found["message"]) == ("complete", None)
    assert found["key"] == f"{backbone}-{task}-nano-{found['digest']}-s0"
    assert folder.parts[-2:] == (f"{found['cell']}-{found['digest']}", "s0")

    parameters = found["parameters"]
    assert parameters["embedding"] + parameters["body"] + parameters["head"] == parameters["total"]
    assert (parameters["active"] < parameters["total"]) == (backbone == "moe")
    assert found["matched"]["value"] == parameters["body"]
    assert found["matched"]["residual"] == pytest.approx(parameters["body"] / 20_000 - 1)
    assert abs(found["matched"]["residual"]) <= 0.01
    stored = load_file(commands.newest_checkpoint(folder) / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) >= parameters["total"]
    reads_again = ("encoder", "masked_diffusion", "s4_bidirectional", "hybrid_bidirectional")
    assert (found["state_bytes_2k"] == 0) == (backbone in reads_again)
    setup = found["setup"]
    assert setup["d_model"] == found["widths"]["d_model"] > 0
    assert setup["num_layers"] == found["widths"]["num_layers"] * (2 if backbone == "encoder_decoder" else 1)
    assert (setup["batch_size"], setup["sequence_length"]) == (4, {"text": 64, "recall": 32}[task])
    assert (folder / "train.log").read_text().splitlines()[-1].endswith(f"runs={folder.parents[2]}")

    training, length = found["training"], {"text": 64, "recall": 32}[task]
    assert training["tokens"] == training["steps"] * 4 * length == 4000 // (4 * length) * 4 * length
    assert training["flops"] == pytest.approx(training["tokens"] * found["flops_per_token"])
    assert 0 < training["data_share"] < 1
    assert training["tokens_per_second"] == pytest.approx(training["tokens"] / training["seconds"])
    assert training["peak_memory_bytes"] > 1e6
    windows = planned_windows() if task == "text" else None
    assert training["epochs"] == (None if windows is None else training["steps"] * 4 / windows)

    metric = found["metrics"][0]  # the table's; objectives may add others
    assert (metric["split"], metric["items"]) == ("test", 8)
    assert metric["standard_error"] >= 0
    if task == "text":
        assert (metric["name"], metric["direction"]) == ("bits_per_byte", "lower")
        assert metric["likelihood"] == LIKELIHOODS[found["objective"]]
        assert 2 < metric["value"] < 10
    else:
        assert (metric["name"], metric["direction"]) == ("answer_accuracy", "higher")
        assert metric["likelihood"] is None
        assert 0 <= metric["value"] <= 1
    assert {reference["metric"] for reference in found["references"]} == {metric["name"]}


def test_the_record_says_where_it_comes_from(trained) -> None:
    folder = trained("mamba", "recall")
    provenance = json.loads((folder / "provenance.json").read_text())
    sections = {"git", "code", "versions", "data", "device", "kernels", "command", "overrides", "resume"}
    assert set(provenance) == {"key", *sections}
    assert set(provenance["git"]) == {"commit", "dirty", "code"}
    assert provenance["versions"]["torch"] == torch.__version__
    device = provenance["device"]
    assert (device["name"], device["threads"], device["precision"]) == ("cpu", 1, "fp32")
    libraries = {"instruction_set", "pytorch_instruction_set", "compiler", "library_settings"}
    assert set(device) == {"name", "threads", "precision", "processor", *libraries}
    assert provenance["kernels"], "the path of the scan is not recorded"
    found = commands.result(folder)
    assert provenance["data"] == {"task": "recall", "fingerprint": found["fingerprint"]}


def test_the_loss_falls(tmp_path: Path) -> None:
    folder = commands.train(*words("decoder", "text", "budget.tokens=16_000", f"runs={tmp_path}"))
    losses = [row["loss"] for row in commands.rows(folder) if row["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.5


def test_a_complete_run_is_not_trained_again(trained, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained("decoder", "recall")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run(commands.settings(*words("decoder", "recall", f"runs={folder.parents[2]}")))
    assert "already complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("launcher", ["basic", "parallel"])
def test_one_failing_cell_does_not_stop_a_sweep(tmp_path: Path, launcher: str) -> None:
    ended = commands.run(
        "train",
        "-m",
        *words("decoder", "recall", "optimizer.learning_rate=1e30,1e-3", "trainer.checkpoint_every=1"),
        f"runs={tmp_path}",
        f"hydra/launcher={launcher}",
    )
    assert ended.returncode == 4, ended.stderr
    assert "at least one run failed" in ended.stderr.splitlines()[-1]
    assert "optimizer.learning_rate=1e+30 " in ended.stderr.splitlines()[0]  # the cell, as Hydra writes it
    assert "Traceback" not in ended.stderr
    found = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    assert sorted(row["status"] for row in found) == ["complete", "diverged"]
    assert {row["study"] for row in found} == {"single"}
    assert len({path.parent for path in tmp_path.rglob("result.json")}) == 2


def test_a_diverged_run_keeps_finite_weights_and_is_a_row(tmp_path: Path) -> None:
    choice = words("decoder", "recall", "optimizer.learning_rate=1e30", "trainer.checkpoint_every=1")
    with pytest.raises(DivergedError) as diverged:
        commands.train(*choice, f"runs={tmp_path}")
    assert diverged.value.exit_code == 4
    folder = commands.settings(*choice, f"runs={tmp_path}").folder
    found = commands.result(folder)
    assert found["status"] == "diverged"
    assert f"at step {found['training']['steps'] + 1}" in found["message"]
    assert found["metrics"] == []
    assert set(found) == RECORD - {"references", "validation"}
    newest = commands.newest_checkpoint(folder)
    assert commands.newest_step(folder) == found["training"]["steps"]
    for name, tensor in load_file(newest / "model.safetensors").items():
        assert tensor.isfinite().all(), name
    before = (folder / "result.json").stat().st_mtime_ns
    commands.train(*choice, f"runs={tmp_path}")  # it would only diverge again
    assert (folder / "result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_changes_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    honest, calls = CausalLM.loss, []

    def loss(self: CausalLM, output: Any, view: Any) -> Any:
        calls.append(1)
        total, count = honest(self, output, view)
        return (total * bad if len(calls) == 5 else total), count

    monkeypatch.setattr(CausalLM, "loss", loss)
    choice = words("decoder", "recall", "trainer.checkpoint_every=1", "trainer.log_every=1")
    with pytest.raises(DivergedError, match="at step 5"):
        commands.train(*choice, f"runs={tmp_path}")
    folder = commands.settings(*choice, f"runs={tmp_path}").folder
    assert commands.newest_step(folder) == 4
    assert commands.rows(folder)[-1]["step"] == 4


TASKS_TO_TRY = (
    "recall task.sequence_length=32",
    "text_source task.sequence_length=32",
    "text task.sequence_length=32",
    "sentences task.sequence_length=32",
    "similarity task.sequence_length=32",
    "tags task.sequence_length=32",
    "pairs task.max_source=16 task.max_target=16",
)
NEEDS = {"ul2": ("text task.sequence_length=32 task.num_sentinels=40",)}  # its mode tokens are sentinels


def partner(objective: str, backbone: str | None = None) -> tuple[str, ...]:
    """A backbone and a task that go with an objective: recall where it can be."""
    for name in [backbone] if backbone else commands.BACKBONES:
        for task in NEEDS.get(objective, TASKS_TO_TRY):
            if not commands.may_meet(name, objective, task.split()[0]):
                continue
            found = (f"objective={objective}", f"backbone={name}", *f"task={task}".split())
            try:
                commands.settings(*found)
            except ConfigError:
                continue
            return found
    raise AssertionError(f"objective={objective} goes with nothing")


ARMS = [*((name, None) for name in OBJECTIVES), ("causal_lm", "moe")]


@pytest.mark.parametrize(("objective", "backbone"), ARMS)
def test_micro_batches_change_no_loss(tmp_path: Path, objective: str, backbone: str | None) -> None:
    choice = (*partner(objective, backbone), *commands.TINY, "trainer.log_every=1")
    choice += ("budget.tokens=1000", "budget.batch_size=5")
    choice += ("optimizer.learning_rate=1e-3",)
    losses = []
    for size in ("null", 2):  # two, two and one sequence
        folder = commands.train(*choice, f"budget.micro_batch_size={size}", f"runs={tmp_path}/{size}")
        losses.append([row["loss"] for row in commands.rows(folder) if row["kind"] == "train"])
    assert len(losses[0]) >= 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    records = []
    for place, seed in enumerate((0, 0, 1)):
        choice = words("decoder", "recall", f"seed={seed}", "trainer.log_every=1", f"runs={tmp_path}/{place}")
        folder = commands.train(*choice)
        records.append((commands.untimed(folder), commands.result(folder)["metrics"]))
    assert records[0] == records[1]
    assert records[0][0] != records[2][0]


@pytest.mark.parametrize("backbone", commands.BACKBONES)
def test_bf16_trains_float32_weights(tmp_path: Path, trained, backbone: str) -> None:
    folder = commands.train(*words(backbone, "recall", "device.precision=bf16", f"runs={tmp_path}"))
    stored = load_file(commands.newest_checkpoint(folder) / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values() if tensor.is_floating_point()} == {torch.float32}
    full = [row["loss"] for row in commands.rows(trained(backbone, "recall")) if "loss" in row]
    half = [row["loss"] for row in commands.rows(folder) if "loss" in row]
    assert half != full
    assert half == pytest.approx(full, rel=0.05)


def rebuild(settings: Settings) -> Backbone:
    """The model of a finished run, from its settings and its last checkpoint alone."""
    planned = plan(settings)
    model = planned.sizes.build(settings.backbone_class, planned.matched.config)
    newest = commands.newest_checkpoint(settings.folder)
    load_state(load_file(newest / "model.safetensors"), model, newest, new_readout=False)
    return model


@pytest.mark.parametrize("task", commands.TASKS)
@pytest.mark.parametrize("backbone", commands.BACKBONES)
def test_the_metric_is_that_of_the_checkpoint(trained, backbone: str, task: str) -> None:
    folder = trained(backbone, task)
    settings = commands.settings(*words(backbone, task, f"runs={folder.parents[2]}"))
    planned, model = plan(settings), rebuild(settings)
    validation = [row for row in commands.rows(folder) if row["kind"] == "validation"][-1]
    tested = commands.result(folder)["metrics"][0]
    for split, value in (("test", tested["value"]), ("validation", validation[planned.task.metric])):
        metric, *_ = measure(
            model, planned.objective, planned.task, split, examples=8, batch_size=4, precision="fp32"
        )
        assert metric.value == pytest.approx(value, rel=1e-6)


def test_bits_per_byte_by_hand(trained) -> None:
    """For a causal model on bytes: the mean of -log2 p over the scored tokens of the test windows."""
    folder = trained("decoder", "text")
    settings = commands.settings(*words("decoder", "text", f"runs={folder.parents[2]}"))
    task, model = plan(settings).task, rebuild(settings).eval()
    batch = task.batch("test", 0, 0, 8)
    start = torch.full((8, 1), task.vocabulary.bos)
    with torch.no_grad():
        logits_BTV = model(torch.cat([start, batch.tokens_BT[:, :-1]], dim=1)).logits_BTV
    assert batch.bytes_BT is not None
    chance_BTV = logits_BTV[..., : task.vocabulary.size].double().log_softmax(-1)
    nats = -chance_BTV.gather(-1, batch.tokens_BT[..., None])[..., 0][batch.answer_BT].sum()
    value = (nats / batch.bytes_BT[batch.answer_BT].sum() / math.log(2)).item()
    assert commands.result(folder)["metrics"][0]["value"] == pytest.approx(value, rel=1e-5)
