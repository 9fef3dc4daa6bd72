"""Tests of the results board."""
