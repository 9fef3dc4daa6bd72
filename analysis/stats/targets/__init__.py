"""Training until a target: tokens and FLOPs to it, and performance profiles over workloads."""
