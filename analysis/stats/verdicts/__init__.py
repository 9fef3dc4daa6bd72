"""Tests between models: the verdict, what could be detected, and simulated studies."""
