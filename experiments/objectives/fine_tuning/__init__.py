"""Objectives with a readout: classes, tags, similarity."""
