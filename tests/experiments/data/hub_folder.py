"""The hub's own layout of a dataset in a local folder, and a library that asks no network for it."""

from __future__ import annotations

from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest

README = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
---
"""


def new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a dataset without files; caches stay in ``tmp_path``, nothing is downloaded."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "some-dataset"
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text(README)
    return folder
