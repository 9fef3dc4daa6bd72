"""Kernels: other implementations of operations than PyTorch's. Without this package all else works."""
