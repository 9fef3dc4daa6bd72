"""Masked and block diffusion: noise, bounds and samplers."""
