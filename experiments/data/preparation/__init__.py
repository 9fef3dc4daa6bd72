"""Preparation of a dataset of the hub by many processes, on one machine or on a cluster."""
