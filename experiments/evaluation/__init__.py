"""Metrics of a trained model on a split."""
