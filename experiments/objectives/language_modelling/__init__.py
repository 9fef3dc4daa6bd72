"""Causal, masked, prefix and sequence-to-sequence language modelling."""
