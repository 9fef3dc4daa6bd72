"""Checkpoints: what they hold, how they are written whole or in shards, kept, and read again."""
