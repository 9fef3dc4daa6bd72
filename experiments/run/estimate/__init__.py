"""Estimate the resources of a run before it: memory of each GPU by part, hours, disk, a time limit."""
