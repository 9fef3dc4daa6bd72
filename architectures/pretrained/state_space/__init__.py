"""Checkpoints of state-space models and hybrids."""
