"""Tasks: tokens, and which positions are answers."""
