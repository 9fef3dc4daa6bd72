"""Intervals, comparisons and warnings on the frame of a study."""
