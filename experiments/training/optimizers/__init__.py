"""Optimizers, one file each: settings and construction."""
