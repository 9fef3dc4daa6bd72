"""A Workspace and a Report in Weights & Biases."""
