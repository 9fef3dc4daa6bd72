"""Objectives with a readout of their own: classes, tags, similarity."""
