"""Speed and memory against length."""
