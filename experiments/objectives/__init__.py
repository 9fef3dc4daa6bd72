"""Objectives: what a model sees, what is scored with which weight, how it samples."""
