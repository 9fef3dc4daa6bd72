"""What the experts of a run do."""
