"""Schedules of the learning rate after the warm-up, one file each (``Schedule`` in experiments.config)."""
