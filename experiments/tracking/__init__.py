"""The run folder, and what mirrors it."""
