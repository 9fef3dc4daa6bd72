"""Synthetic probes: copying, induction, infilling, needle."""
