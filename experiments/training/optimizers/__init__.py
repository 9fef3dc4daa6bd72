"""Optimizers, one file each: settings and construction. No file imports torch at import time."""
