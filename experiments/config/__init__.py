"""The sections of a configuration as typed dataclasses, and how Hydra is started."""
