"""Every workload of every track composes, says what it is for, and can be solved by no shallow baseline."""

from __future__ import annotations

import pytest

from archbench.analysis.declared.scored_runs import scored_runs
from archbench.analysis.declared.study_frames import stored_frame
from archbench.analysis.declared.tracks import MAIN, Track, Workload, read_track
from archbench.experiments.config import CONF
from archbench.experiments.run.plan import build_task
from archbench.experiments.run.settings import Settings
from archbench.experiments.run.skipped_cells import stored_status
from archbench.experiments.tasks.__main__ import check_task
from archbench.experiments.tasks.probes.probe import Probe
from tests.experiments import commands
from tests.tiers import fast_only

NAMES = sorted(
    path.stem for path in (CONF / "study" / "track").glob("*.yaml") if not path.stem.endswith("_rates")
)
WORKLOADS = [f"{name}/{workload.name}" for name in NAMES for workload in read_track(name).workloads]
FAST = ["cpu/recall_length", "gpu/text_8k", "cluster/fineweb_1_3b"]
CPU = read_track("cpu")
GENERATED = [
    "recall_state", "recall_length", "induction_length", "selective_copying", "phone_book", "parity",
    "infilling", "noisy_recall",
]  # fmt: skip


def compose(name: str, workload: Workload, *words: str) -> Settings:
    track = read_track(name)
    choice = (f"{track.group}={workload.name}", "study.tuned=null", *workload.offline, *words)
    return commands.settings(f"study={track.study}", *choice)


def test_there_are_the_tracks_that_the_pages_have() -> None:
    pages = {path.stem for path in (CONF.parent / "docs" / "tracks").glob("*.md")} - {"index", "rules"}
    assert pages == {MAIN, *NAMES}


@pytest.mark.parametrize("place", fast_only(WORKLOADS, FAST))
def test_a_workload_composes_and_describes_itself(place: str) -> None:
    name, workload = place.split("/")
    own = read_track(name).workload(workload)
    assert own.title
    assert own.differ
    assert own.target is not None
    settings = compose(name, own, "backbone=decoder")
    assert settings.names.task == workload, "the name of the task is that of the workload"
    wanted = {*own.held_out.values(), *([own.scored] if own.scored else [])}
    assert wanted <= set(settings.extra_evaluations), "what is scored is evaluated"
    assert settings.scale.axis == "flops"
    assert settings.scale.target is not None


@pytest.mark.parametrize("workload", fast_only([each.name for each in CPU.workloads], ["parity"]))
def test_the_kept_results_of_a_workload_count_as_done(workload: str) -> None:
    """Their digests are those of the configurations, under the learning rates that were chosen."""
    assert CPU.stored is not None
    runs = scored_runs(CPU, stored_frame(CPU))
    own = runs[(runs["task"] == workload) & (runs["seed"] == CPU.seeds[0]) & (runs["status"] == "complete")]
    assert len(own) >= 6
    for run in own.itertuples():
        settings = commands.settings(
            f"study={CPU.study}", f"{CPU.group}={workload}", f"backbone={run.backbone}", f"seed={run.seed}",
            "study.tuned=null", f"optimizer.learning_rate={run.learning_rate}",
        )  # fmt: skip
        assert stored_status(settings) == "complete", settings.key


@pytest.mark.parametrize("name", NAMES)
def test_tuning_runs_are_of_other_seeds_and_of_the_same_models(name: str) -> None:
    track = read_track(name)
    assert not set(track.tuning_seeds) & set(track.seeds)
    assert len(track.learning_rates) >= 3
    tuning = commands.compose(f"study={track.rates_study}", f"{track.group}={track.workloads[0].name}")
    assert tuning.study.name == track.rates_folder
    assert tuning.study.tuned is None
    assert not tuning.trainer.extra_evaluations, "held-out variants are not looked at for choices"


@pytest.mark.parametrize("workload", fast_only(GENERATED, ["infilling"]))
def test_the_oracle_solves_a_workload_and_shallow_baselines_do_not(workload: str) -> None:
    track = read_track("cpu")
    settings = compose("cpu", track.workload(workload), "backbone=decoder")
    configs = [settings.task]
    if (scored := track.workload(workload).scored) is not None:
        configs.append(settings.extra_evaluations[scored])
    for config in configs:
        task = build_task(settings.task_class, config, workload)
        assert isinstance(task, Probe)
        check = check_task(workload, task)
        assert check.oracle == 1
        assert max(check.guess, *check.scores.values()) < 0.7


def test_the_laptop_track_is_recall_by_the_rules_of_the_protocol() -> None:
    track: Track = read_track(MAIN)
    assert (track.study, track.folder, track.group) == ("compare", "compare", "task")
    assert [workload.name for workload in track.workloads] == ["recall_8_pairs"]
    assert (track.protocol, track.tuned, bool(track.miniature)) == ("1.0", True, True)


def test_a_mistyped_track_and_workload_are_said() -> None:
    with pytest.raises(ValueError, match="'cpuu' is no track; did you mean 'cpu'"):
        read_track("cpuu")
    with pytest.raises(ValueError, match=r"workloads=parrity.*parity"):
        read_track("cpu").workload("parrity")
