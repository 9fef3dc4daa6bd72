"""Checkpoints of bidirectional transformers."""
