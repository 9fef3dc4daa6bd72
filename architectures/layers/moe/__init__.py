"""Mixture of experts: routing, dispatch, and experts across processes."""
