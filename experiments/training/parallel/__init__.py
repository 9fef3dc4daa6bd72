"""Training one run with multiple processes."""
