"""Runs that version 0.1 (commit a31c819) stored: they open, score as they did, and can be continued.

The folders of ``stored_0_1/old`` are as that version wrote them, but for provenance.json, which is left out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from analysis.load.run_config import flat_config
from analysis.load.study import load_study
from experiments.config.legacy import upgrade
from experiments.config.sections import read_sections
from experiments.evaluation.measure import measure
from experiments.run.load_model import load_model
from experiments.run.settings import Settings, read_settings
from tests.experiments import commands

STORED = Path(__file__).parent / "stored_0_1"
CPU = torch.device("cpu")
RUNS = {path.parent.name.rpartition("-")[0]: path for path in sorted(STORED.glob("old/*/s0"))}
CLASSES = {
    "decoder-text-given": "Decoder",
    "diffusion-text-given": "MaskedDiffusion",
    "encoder-text-given": "Encoder",
    "encoder_decoder-text-given": "EncoderDecoder",
    "hybrid-text-given": "Hybrid",
    "mamba-text-given": "Mamba",
    "moe-text-given": "MoE",
    "s4-recall-given": "S4",
}


def settings_of(name: str) -> Settings:
    """Return all settings of a stored run, in the words of this version."""
    stored = OmegaConf.to_container(OmegaConf.load(RUNS[name] / "config.yaml"))
    assert isinstance(stored, dict)
    return read_settings(
        read_sections(OmegaConf.create(upgrade({str(key): value for key, value in stored.items()})))
    )


@pytest.mark.parametrize("name", CLASSES)
def test_a_stored_run_scores_as_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the windows it was scored on: the first of the text, which lie side by side."""
    monkeypatch.setattr("experiments.tasks.text.text.permute", lambda key, index_B, size: index_B)
    path, settings = RUNS[name], settings_of(name)
    run = load_model(path, CPU).run
    assert run is not None
    saved = load_model(path, CPU, task=run.build_task())
    assert type(saved.model).__name__ == CLASSES[name]
    stored = json.loads((path / "result.json").read_text())["metrics"]
    expected = next(metric for metric in stored if metric["split"] == "test")
    found = measure(
        saved.model,
        saved.objective,
        saved.task,
        "test",
        examples=settings.trainer.test_examples,
        batch_size=settings.budget.batch_size,
        precision=settings.device.precision,
    )[0]
    assert found.name == expected["name"]
    assert found.value == pytest.approx(expected["value"], rel=1e-6)


def test_renamed_settings_keep_their_values() -> None:
    decoder = settings_of("decoder-text-given")
    assert list(decoder.extra_evaluations) == ["sequence_length=64"]
    assert decoder.scale.axis == "active_non_embedding"
    assert decoder.resolved["backbone"]["tie_embeddings"] is True
    encoder = settings_of("encoder-text-given")
    assert encoder.objective.mask_probability == 0.2
    assert encoder.objective.mask_replace_probability == 0.7
    assert settings_of("mamba-text-given").optimizer.decay_end_fractions == [0.5, 1.0]
    assert settings_of("hybrid-text-given").resolved["backbone"]["s4"]["dt_scale"] == 2.0
    assert settings_of("diffusion-text-given").names.backbone == "masked_diffusion"


def test_the_study_loads(tmp_path: Path) -> None:
    shutil.copytree(STORED / "old", tmp_path / "old")
    frame = load_study(tmp_path, "old").set_index("cell")
    assert set(frame.index) == set(CLASSES)
    assert (frame["status"] == "complete").all()
    assert frame.loc["mamba-text-given", "decay_ends"] == "[0.5, 1.0]"
    assert flat_config(RUNS["s4-recall-given"])["backbone.dt_scale"] == 1.5


@pytest.mark.parametrize("key", ["continue_from", "init_from"])
def test_a_stored_run_can_be_built_on(key: str, tmp_path: Path) -> None:
    words = [
        f"{key}={RUNS['decoder-text-given']}",
        "task=text",
        "task.sequence_length=32",
        "budget=smoke",
        "budget.tokens=640",
        "device=cpu",
        "device.threads=1",
        "trainer.test_examples=8",
        "trainer.validation_examples=4",
    ]
    if key == "continue_from":
        words += [
            "scale=given",
            "backbone.d_model=8",
            "backbone.num_layers=1",
            "backbone.tie_embeddings=true",
        ]
        words += ["backbone.attention.num_heads=2"]
    folder = commands.train(*words, f"runs={tmp_path}")
    assert commands.result(folder)["status"] == "complete"
