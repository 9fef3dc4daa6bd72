"""Price a model that nobody builds: parameters, FLOPs, memory, cache."""
