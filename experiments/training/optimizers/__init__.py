"""Optimizers, one file each: their settings, and how they are made. No file imports torch when it is read."""
