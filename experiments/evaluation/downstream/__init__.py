"""Evaluation of models on tasks of the lm-evaluation-harness."""
