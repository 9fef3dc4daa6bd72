from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_history, load_study
from archbench.experiments.tracking.frame_columns import columns
from archbench.experiments.tracking.results_frame import METRIC
from tests.results import write_result


def test_every_run_is_a_row(study: Path) -> None:
    frame = load_study(study, "compare")
    assert len(frame) == 30
    counts = frame["status"].value_counts().to_dict()
    assert counts == {"complete": 25, "diverged": 3, "oom": 1, "incomplete": 1}
    run = frame[(frame["arm"] == "decoder") & (frame["task"] == "text") & (frame["seed"] == 1)].iloc[0]
    assert run["score"] == run["test_bits_per_byte"] == 2.40 + 0.01
    assert run["training_flops"] == 5e11
    assert run["parameters_body"] == 200600
    assert run["matched_residual"] == 0.003
    assert (run["git_commit"], run["device_threads"], run["likelihood"]) == ("c0ffee", "1", "exact")
    assert json.loads(run["versions"]) == {"python": "3.11", "torch": "2.10"}


def test_every_column_is_described_and_has_the_same_type_in_every_study(study: Path) -> None:
    frame, described = load_study(study, "compare"), columns()
    metrics = {name for name in frame if METRIC.fullmatch(name)}
    assert {*frame} | {"studies_differ"} == {*described} | metrics
    for name in {*frame} - metrics:
        numbers = pd.api.types.is_numeric_dtype(frame[name]) and frame[name].dtype != bool
        assert numbers == (described[name].kind == "number"), name


def test_failures_keep_status_and_message(study: Path) -> None:
    frame = load_study(study, "compare").set_index(["arm", "task", "seed"])
    assert frame.loc[("s4", "recall", 0), "message"] == "loss is nan at step 40"
    assert math.isnan(frame.loc[("s4", "recall", 0), "score"])
    assert math.isnan(frame.loc[("moe", "text", 1), "training_flops"])


def test_a_killed_run_is_told_by_its_cell_and_its_torn_line_counted(study: Path) -> None:
    frame = load_study(study, "compare")
    killed = frame[frame["status"] == "incomplete"].iloc[0]
    assert (killed["backbone"], killed["task"], killed["seed"]) == ("moe", "text", 2)
    assert killed["corrupt_lines"] == 1
    assert frame["corrupt_lines"].sum() == 1


def test_a_lone_killed_run_goes_by_its_cell(write_run: Any, tmp_path: Path) -> None:
    write_run("mamba", 0, killed=True)
    run = load_study(tmp_path / "runs", "compare").iloc[0]
    assert (run["arm"], run["task"], run["scale"]) == ("mamba", "text", "nano")


def test_slices_of_a_text_are_a_column(write_run: Any, tmp_path: Path) -> None:
    slices = [{"by": "recall", "name": "repeats 8 bytes", "bits": 2.5, "tokens": 1.0, "bytes": 1.0}]
    slices[0]["cluster_totals"] = [[2.5, 1.0]]
    for seed, found in enumerate((None, slices)):
        folder = write_run("mamba", seed, 2.4)
        record = json.loads((folder / "result.json").read_text())
        record["metrics"][0]["slices"] = found
        write_result(folder, record)
    found = load_study(tmp_path / "runs", "compare")["slices"]
    assert found.isna().tolist() == [True, False]
    assert json.loads(found[1]) == slices


def test_numbers_written_as_text(write_run: Any, tmp_path: Path) -> None:
    folder = write_run("mamba", 0, 2.4)
    record = json.loads((folder / "result.json").read_text())
    record["training"]["tokens_per_second"] = "inf"
    record["metrics"][0]["value"] = "nan"
    write_result(folder, record)
    run = load_study(tmp_path / "runs", "compare").iloc[0]
    assert math.isinf(run["training_tokens_per_second"])
    assert math.isnan(run["score"])


def test_arms_get_the_shortest_names_that_differ(write_run: Any, tmp_path: Path) -> None:
    write_run("decoder", 0)
    write_run("encoder", 0, objective="masked_lm")
    write_run("encoder", 0, objective="masked_diffusion")
    write_run("mamba", 0, digest="11111111")
    write_run("mamba", 0, digest="22222222")
    assert sorted(load_study(tmp_path / "runs", "compare")["arm"]) == [
        "decoder",
        "encoder masked_diffusion",
        "encoder masked_lm",
        "mamba-causal_lm-text-nano-11111111",
        "mamba-causal_lm-text-nano-22222222",
    ]


def test_arms_of_one_cell_are_told_apart_by_their_settings(write_run: Any, tmp_path: Path) -> None:
    """Only what differs is named, and by its last word where that is enough."""
    cells = (("11111111", "rope", 4), ("22222222", "alibi", 4), ("33333333", "rope", None))
    for digest, kind, heads in cells:
        folder = write_run("decoder", 0, digest=digest)
        backbone = {"positions": {"kind": kind}, "attention": {"num_kv_heads": heads, "bias": False}}
        (folder / "config.yaml").write_text(json.dumps({"backbone": backbone, "seed": 0}))
    assert sorted(load_study(tmp_path / "runs", "compare")["arm"]) == [
        "decoder num_kv_heads=4 kind=alibi",
        "decoder num_kv_heads=4 kind=rope",
        "decoder num_kv_heads=None kind=rope",
    ]


def test_layer_patterns_are_short_in_names(write_run: Any, tmp_path: Path) -> None:
    for digest, layers in (("1", ["mamba*3", "attention"]), ("2", ["attention+mamba2"])):
        folder = write_run("hybrid", 0, digest=digest)
        (folder / "config.yaml").write_text(yaml.safe_dump({"backbone": {"layers": layers}}))
    assert sorted(load_study(tmp_path / "runs", "compare")["arm"]) == [
        "hybrid layers=attention+mamba2",
        "hybrid layers=mamba*3,attention",
    ]


def test_a_setting_that_follows_another_of_its_name_is_not_named_twice(
    write_run: Any, tmp_path: Path
) -> None:
    for digest, block, width in (("11111111", 4, 8), ("22222222", 16, 9)):
        folder = write_run("block_diffusion", 0, digest=digest)
        config = {"backbone": {"block_length": block, "d_ff": width}, "objective": {"block_length": block}}
        (folder / "config.yaml").write_text(json.dumps(config))
    assert sorted(load_study(tmp_path / "runs", "compare")["arm"]) == [
        "block_diffusion d_ff=8 block_length=4",
        "block_diffusion d_ff=9 block_length=16",
    ]


def test_an_unknown_study_names_the_nearest(study: Path) -> None:
    words = r"studies there: compare; nor is there a conf/study/compaer\.yaml.*did you mean 'compare'\?"
    with pytest.raises(ValueError, match=words):
        load_study(study, "compaer")
    with pytest.raises(ValueError, match=r"there is no such folder; did you mean 'runs'\?"):
        load_study(study.parent / "rnus", "compare")
    (study / "empty").mkdir()
    with pytest.raises(ValueError, match="study=empty has no runs"):
        load_study(study, "empty")


def test_a_broken_record_is_a_row_that_says_so(write_run: Any, tmp_path: Path) -> None:
    folders = [write_run("mamba", seed) for seed in range(3)]
    (folders[0] / "result.json").write_text('{"format": 1, "sta')
    write_result(folders[1], {"format": 2, "status": "complete"})
    frame = load_study(tmp_path / "runs", "compare")
    assert frame["status"].tolist() == ["unreadable", "unreadable", "complete"]
    assert "s0/result.json: is damaged (no JSON" in frame["message"][0]
    assert "s1/result.json is not a record of format 1" in frame["message"][1]
    assert (frame["arm"][0], frame["task"][0]) == ("mamba", "text")


def test_a_cell_s_name_says_what_an_unreadable_run_was(write_run: Any, tmp_path: Path) -> None:
    folder = write_run("mamba", 0)
    folder.parent.rename(folder.parents[1] / "mamba-text-nano-ab12cd34")
    (folder.parents[1] / "mamba-text-nano-ab12cd34" / "s0" / "result.json").write_text("[]")
    run = load_study(tmp_path / "runs", "compare").iloc[0]
    assert (run["arm"], run["task"], run["scale"], run["status"]) == ("mamba", "text", "nano", "unreadable")


def test_history_has_a_row_for_each_line(study: Path) -> None:
    frame, history = load_study(study, "compare"), load_history(study, "compare")
    assert len(history) == 30 * 10
    assert set(history["path"]) == set(frame["path"])
    path = frame[(frame["arm"] == "s4") & (frame["task"] == "recall")]["path"].iloc[0]
    train = history[(history["path"] == path) & (history["kind"] == "train")]
    assert train["step"].tolist() == [10, 20, 30, 40, 50]
    assert train["loss"].isna().tolist() == [False, False, False, True, True]


def test_a_resumed_step_counts_once_as_it_was_last(write_run: Any, tmp_path: Path) -> None:
    again = {"kind": "validation", "step": 40, "tokens": 163840, "bits_per_byte": 1.25}
    # The first process died mid-line, the second began a line of its own.
    write_run("mamba", 0, tail='{"kind": "vali\n' + json.dumps(again) + "\n")
    history = load_history(tmp_path / "runs", "compare")
    rows = history[(history["kind"] == "validation") & (history["step"] == 40)]
    assert rows["bits_per_byte"].tolist() == [1.25]
    assert history[history["kind"] == "validation"]["step"].tolist() == [10, 20, 30, 40, 50]


def test_history_without_a_line_is_empty(write_run: Any, tmp_path: Path) -> None:
    (write_run("mamba", 0) / "metrics.jsonl").unlink()
    history = load_history(tmp_path / "runs", "compare")
    assert history.empty
    assert {"path", "kind", "step", "tokens", "flops", "seconds"} <= set(history)


def test_the_last_validation_is_in_the_frame(study: Path) -> None:
    frame = load_study(study, "compare").set_index(["arm", "task", "seed"])
    # Validations end at score (1 + 1/50); a run that diverged has not said what its score would have been.
    assert frame.loc[("decoder", "text", 0), "validation"] == pytest.approx(2.4 * 1.02)
    assert math.isnan(frame.loc[("s4", "recall", 0), "validation"])


@pytest.mark.parametrize("text", ["optimizer: {a: [}", "[1, 2]", "- a\n- b\n"])
def test_a_broken_configuration_is_named(write_run: Any, tmp_path: Path, text: str) -> None:
    (write_run("mamba", 0) / "config.yaml").write_text(text)
    write_run("mamba", 0, digest="11111111")  # so that settings are asked for, to tell the two apart
    messages = load_study(tmp_path / "runs", "compare").set_index("status")["message"]
    words = r"s0/config.yaml is no YAML .*: delete it and run the study again"
    assert re.search(words, messages["unreadable"])


def test_configurations_are_read_in_either_style(write_run: Any, tmp_path: Path) -> None:
    sections = {"study": {"against": "training_epochs"}}
    sections |= {"optimizer": {"decay_end_fractions": [0.5, 1.0], "learning_rate": 0.1}}  # type: ignore[dict-item]
    block, flow = yaml.safe_dump(sections, default_flow_style=False), json.dumps(sections)
    for seed, text in enumerate((block, flow)):
        (write_run("mamba", seed) / "config.yaml").write_text(text)
    frame = load_study(tmp_path / "runs", "compare")
    for column, value in {
        "against": "training_epochs",
        "decay_ends": "[0.5, 1.0]",
        "learning_rate": 0.1,
    }.items():
        assert frame[column].tolist() == [value, value]


def test_a_run_of_another_study_is_left_out_and_named(write_run: Any, tmp_path: Path) -> None:
    """It counted as a configuration of the study that its folder was copied into."""
    write_run("mamba", 0, 2.4)
    foreign = write_run("decoder", 0, 2.2, study="other")
    shutil.copytree(foreign.parent, tmp_path / "runs" / "compare" / foreign.parent.name)
    frame = load_study(tmp_path / "runs", "compare")
    assert list(frame["backbone"]) == ["mamba"]
    name = f"{foreign.parent.name}/s0 of study=other"
    assert json.loads(frame["left_out"].iloc[0]) == [name]
    (warning,) = [line for line in Comparison(frame).warnings if "another study" in line]
    assert f"compare/{name}" in warning


def test_a_folder_of_runs_of_two_other_studies_is_an_error(write_run: Any, tmp_path: Path) -> None:
    for study in ("one", "two"):
        folder = write_run("decoder", 0, digest=f"{study}12345"[:8], study=study)
        shutil.copytree(folder.parent, tmp_path / "runs" / "compare" / folder.parent.name)
    with pytest.raises(ValueError, match="has runs of study=one, study=two, and none of study=compare"):
        load_study(tmp_path / "runs", "compare")


def test_a_number_of_hundreds_of_digits_is_no_number(write_run: Any, tmp_path: Path) -> None:
    row = json.dumps({"kind": "train", "step": 1, "loss": 10**400, "tokens": 1})
    write_run("mamba", 0, 2.4, tail=f"{row}\n")
    history = load_history(tmp_path / "runs", "compare")
    assert history["loss"].max() < 100
