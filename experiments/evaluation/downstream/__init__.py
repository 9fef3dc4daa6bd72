"""The tasks of the lm-evaluation-harness, asked of our models."""
