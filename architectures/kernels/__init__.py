"""Faster ways to compute what the layers mean, and the choice between them."""
