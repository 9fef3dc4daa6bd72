"""Every test, and every process a test starts, uses one thread and no network."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first: beside it there is work for the other processes."""
    items.sort(key=lambda item: item.name != "test_commands_run_one_after_the_other")
