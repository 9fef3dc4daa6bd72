"""Compute the cost of a model without building it: parameters, FLOPs, memory, cache."""
