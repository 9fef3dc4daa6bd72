"""The families: each module holds one backbone and its settings."""
