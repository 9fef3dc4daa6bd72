"""Checkpoints: their content, complete or in shards; writing, retention and loading."""
