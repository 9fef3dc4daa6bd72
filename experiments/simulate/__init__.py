"""A training step of many processes, played by one of them without memory, GPUs or a network."""
