"""Every test, and every process a test starts, uses one thread and no network."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
