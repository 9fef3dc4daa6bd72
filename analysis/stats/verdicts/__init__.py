"""Tests between models: the verdict, what could be detected, and the simulation that chose the test."""
