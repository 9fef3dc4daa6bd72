"""Scaling laws of a study."""
