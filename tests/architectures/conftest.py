import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # the oracles are built from their configurations alone


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test draws the same numbers alone and among others."""
    torch.manual_seed(0)
