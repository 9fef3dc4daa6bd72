"""Measure how fast one backbone trains, prefills, decodes and fills in blanks."""
