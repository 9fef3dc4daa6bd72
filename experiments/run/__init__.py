"""The path of a run from its configuration to its record."""
