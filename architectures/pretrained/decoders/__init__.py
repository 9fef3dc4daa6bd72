"""Checkpoints of decoder-only transformers."""
