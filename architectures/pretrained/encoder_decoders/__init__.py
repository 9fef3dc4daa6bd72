"""Checkpoints of encoder-decoders."""
