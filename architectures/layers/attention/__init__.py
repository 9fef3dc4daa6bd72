"""Softmax attention, its variants and its key/value caches."""
